/* Issues asynchronous calls faster than a server that stands still executes them.
 *   stuck CALLS    prints "ready SERVER", waits for a line, issues, prints "issued", checks the count */
#include <stdio.h>
#include <stdlib.h>

#include "testapi.h"

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 100000;
    uint64_t before = ta_noop_count();
    printf("ready %d\n", (int)ta_process());
    fflush(stdout);
    if (getchar() == EOF)
        return 2;
    for (long i = 0; i < calls; i++)
        if (ta_noop_async() != TA_OK)
            return 3;
    printf("issued\n");
    fflush(stdout);
    uint64_t after = ta_noop_count();
    if (ta_noop() != TA_OK)
        return 3;
    return after == before + (uint64_t)calls ? 0 : 1;
}
