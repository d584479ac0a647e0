/* program: asks, then for each line of its input adds 1 and prints the sum. */
#include <stdio.h>

#include "counter.h"

int main(void) {
    char line[16];
    printf("%d\n", counter_sum());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        counter_add(1);
        printf("%d\n", counter_sum());
        fflush(stdout);
    }
    return 0;
}
