/* Holds device memory of testapi until its standard input ends. */
#include <stdio.h>
#include <testapi.h>

int main(void) {
    if (ta_reserve(5 << 20) != TA_OK)
        return 1;
    puts("holds");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
