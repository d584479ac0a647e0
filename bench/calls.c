// Cost of one call: the first (attaching), a synchronous no-op, issuing an
// asynchronous no-op, and a small read. Run natively and through Aviary.
//
//   calls [CALLS]      prints one JSON object
#define _GNU_SOURCE
#include "testapi.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "timing.h"

#define BATCH 200

// Median over batches of the time of one call.
static double median(double *times, long count) {
    qsort(times, (size_t)count, sizeof *times, by_real_value);
    return times[count / 2];
}

static void check(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "calls: %s failed\n", what);
    exit(1);
}

static double synchronous(double *times, long batches) {
    for (long b = 0; b < batches; b++) {
        uint64_t start = now();
        for (int i = 0; i < BATCH; i++) check(ta_noop() == TA_OK, "ta_noop");
        times[b] = (double)(now() - start) / BATCH;
    }
    return median(times, batches);
}

// Only the issuing is timed: a synchronous call between batches lets the server catch up.
static double asynchronous(double *times, long batches) {
    for (long b = 0; b < batches; b++) {
        uint64_t start = now();
        for (int i = 0; i < BATCH; i++) check(ta_noop_async() == TA_OK, "ta_noop_async");
        times[b] = (double)(now() - start) / BATCH;
        check(ta_noop() == TA_OK, "ta_noop");
    }
    return median(times, batches);
}

// Issuing and execution together: what a long stream of asynchronous calls costs.
static double stream(long calls) {
    uint64_t start = now();
    for (long i = 0; i < calls; i++) ta_noop_async();
    check(ta_noop() == TA_OK, "ta_noop");
    return (double)(now() - start) / (double)calls;
}

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 100000;
    long batches = calls / BATCH > 0 ? calls / BATCH : 1;
    double *times = malloc((size_t)batches * sizeof *times);
    if (!times) return 1;
    usleep(300000); // the warm pool fills
    uint64_t start = now();
    check(ta_noop() == TA_OK, "the first call");
    double attach = (double)(now() - start) / 1e6;
    synchronous(times, batches / 10 + 1); // warm-up
    uint64_t before = ta_noop_count();
    double async_ns = asynchronous(times, batches);
    uint64_t executed = ta_noop_count() - before;
    check(executed >= (uint64_t)batches * BATCH, "execution of every asynchronous call");
    double sync_ns = synchronous(times, batches);
    printf("{\"attach_ms\": %.3f, \"sync_ns\": %.1f, \"async_ns\": %.1f, \"stream_ns\": %.1f}\n",
           attach, sync_ns, async_ns, stream(calls));
}
