// Synchronous calls of testapi through `aviary run --server`, for bench/netcalls.py, which watches the carriers meanwhile:
//   netcalls COUNT     for each line that it reads makes COUNT calls; prints their median in us
#include "testapi.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "timing.h"

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 0;
    double *times = malloc((size_t)count * sizeof *times);
    if (count < 1 || !times) return 2;
    for (int i = 0; i < 1000; i++)
        if (ta_noop() != TA_OK) return 1;
    printf("ready\n");
    fflush(stdout);
    while (getchar() == '\n') {
        for (long i = 0; i < count; i++) {
            double start = (double)now();
            if (ta_noop() != TA_OK) return fprintf(stderr, "netcalls: ta_noop failed\n"), 1;
            times[i] = ((double)now() - start) / 1e3;
        }
        qsort(times, (size_t)count, sizeof *times, by_real_value);
        printf("%.2f\n", times[count / 2]);
        fflush(stdout);
    }
}
