// Where the time of a synchronous call goes. The processor's time stamp counter is read before the call, inside the
// vendor library and after the call; all cores count alike (constant_tsc). What the guest's and the server's part cost
// is measured with many asynchronous calls, in turn with the others, so that all parts saw the same machine.
//
//   breakdown [ROUNDS]      prints one JSON object, in ns: medians
#include "testapi.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "timing.h"

#if !defined(__x86_64__)
#error "only x86-64 has a counter that both sides can read"
#endif

#define CALLS 50
#define BURST 100
#define STREAM 2000

static int by_ticks(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median(int64_t *ticks, long count, double rate) {
    qsort(ticks, (size_t)count, sizeof *ticks, by_ticks);
    return (double)ticks[count / 2] * rate;
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 2000;
    if (rounds < 1) return 2;
    size_t bytes = (size_t)rounds * CALLS * sizeof(int64_t);
    int64_t *there = malloc(bytes), *back = malloc(bytes), *issue = malloc(bytes), *stream = malloc(bytes), *bare = malloc(bytes);
    if (!there || !back || !issue || !stream || !bare) return 1;
    for (long i = 0; i < 10000; i++) ta_ticks(); // warm-up
    uint64_t start_ns = now(), start = __builtin_ia32_rdtsc();
    for (long round = 0, n = 0; round < rounds; round++) {
        for (long i = 0; i < CALLS; i++, n++) {
            uint64_t before = __builtin_ia32_rdtsc();
            uint64_t reached = ta_ticks();
            uint64_t after = __builtin_ia32_rdtsc();
            there[n] = (int64_t)(reached - before);
            back[n] = (int64_t)(after - reached);
            before = __builtin_ia32_rdtsc();
            bare[n] = (int64_t)(__builtin_ia32_rdtsc() - before);
        }
        // So many fit into the ring: the guest waits for nobody.
        uint64_t first = __builtin_ia32_rdtsc();
        for (long i = 0; i < BURST; i++) ta_noop_async();
        issue[round] = (int64_t)(__builtin_ia32_rdtsc() - first) / BURST;
        ta_noop();
        // One after the other without a wait: the slower side, which is the server, sets the pace.
        uint64_t before = __builtin_ia32_rdtsc();
        for (long i = 0; i < STREAM; i++) ta_noop_async();
        ta_noop();
        stream[round] = (int64_t)(__builtin_ia32_rdtsc() - before) / STREAM;
    }
    double rate = (double)(now() - start_ns) / (double)(__builtin_ia32_rdtsc() - start);
    long count = rounds * CALLS;
    printf("{\"there_ns\": %.1f, \"back_ns\": %.1f, \"issue_ns\": %.1f, \"stream_ns\": %.1f, \"bare_ns\": %.1f}\n",
           median(there, count, rate), median(back, count, rate), median(issue, rounds, rate), median(stream, rounds, rate),
           median(bare, count, rate));
}
