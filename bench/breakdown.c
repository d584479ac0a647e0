// When a synchronous call reaches the library, and when its answer is back: the processor's time stamp counter
// is read before the call, inside the vendor library and after the call. All cores count alike (constant_tsc).
//
//   breakdown [CALLS]      prints one JSON object, in ns: medians
#include "testapi.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if !defined(__x86_64__)
#error "only x86-64 has a counter that both sides can read"
#endif

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median(int64_t *ticks, long count, double rate) {
    qsort(ticks, (size_t)count, sizeof *ticks, by_value);
    return (double)ticks[count / 2] * rate;
}

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 100000;
    if (calls < 1) return 2;
    int64_t *there = malloc((size_t)calls * sizeof *there), *back = malloc((size_t)calls * sizeof *back);
    if (!there || !back) return 1;
    for (long i = 0; i < calls / 10; i++) ta_ticks(); // warm-up
    uint64_t start_ns = now(), start = __builtin_ia32_rdtsc();
    for (long i = 0; i < calls; i++) {
        uint64_t before = __builtin_ia32_rdtsc();
        uint64_t reached = ta_ticks();
        uint64_t after = __builtin_ia32_rdtsc();
        there[i] = (int64_t)(reached - before);
        back[i] = (int64_t)(after - reached);
    }
    double rate = (double)(now() - start_ns) / (double)(__builtin_ia32_rdtsc() - start);
    printf("{\"there_ns\": %.1f, \"back_ns\": %.1f}\n", median(there, calls, rate), median(back, calls, rate));
}
