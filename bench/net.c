// Cost of calls over a link, run through `aviary run --server`:
//   net        prints one JSON object
// The first calls of each measurement warm the connection up.
#define _GNU_SOURCE
#include "testapi.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "timing.h"

#define ASYNC 1000
#define ROUNDS 21
#define BULK ((size_t)64 << 20)
#define BULKS 3

static double now_ms(void) {
    return (double)now() / 1e6;
}

static void check(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "net: %s failed\n", what);
    exit(1);
}

static double quantile(double *times, size_t count, double q) {
    qsort(times, count, sizeof *times, by_real_value);
    return times[(size_t)((double)(count - 1) * q)];
}

static double synchronous(void) {
    double times[200];
    for (int i = 0; i < 200; i++) {
        double start = now_ms();
        check(ta_noop() == TA_OK, "ta_noop");
        times[i] = now_ms() - start;
    }
    return quantile(times, 200, 0.5);
}

static double asynchronous(void) {
    double times[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ms();
        for (int i = 0; i < ASYNC; i++) check(ta_noop_async() == TA_OK, "ta_noop_async");
        check(ta_noop() == TA_OK, "ta_noop");
        times[round] = now_ms() - start;
        usleep(20000);
    }
    return quantile(times, ROUNDS, 0.5);
}

static volatile int copying;
static double small[1 << 20];
static size_t smalls;

static void *call_meanwhile(void *unused) {
    (void)unused;
    check(ta_noop() == TA_OK, "ta_noop in another thread");
    while (!copying) usleep(100);
    while (copying && smalls < sizeof small / sizeof *small) {
        double start = now_ms();
        check(ta_noop() == TA_OK, "ta_noop while copying");
        small[smalls++] = now_ms() - start;
        usleep(500);
    }
    return NULL;
}

static double megabytes(double start) {
    return (double)BULK / 1e3 / (now_ms() - start);
}

int main(void) {
    ta_device device;
    ta_buffer buffer;
    check(ta_device_open("net", &device) == TA_OK, "ta_device_open");
    check(ta_buffer_create(device, BULK, &buffer) == TA_OK, "ta_buffer_create");
    char *data = malloc(BULK);
    check(data != NULL, "memory");
    // Data that does not get shorter.
    for (size_t at = 0; at < BULK;) {
        ssize_t n = getrandom(data + at, BULK - at, 0);
        check(n > 0, "getrandom");
        at += (size_t)n;
    }
    synchronous();
    double sync_ms = synchronous();
    asynchronous();
    double async_ms = asynchronous();
    char first = data[0], last = data[BULK - 1];
    double writes[BULKS], reads[BULKS];
    // The first round meets memory that nobody has touched, also in a native library.
    for (int round = -1; round < BULKS; round++) {
        double start = now_ms();
        check(ta_buffer_write(buffer, 0, BULK, data) == TA_OK, "writing");
        double write_speed = megabytes(start);
        memset(data, 0, BULK);
        start = now_ms();
        check(ta_buffer_read(buffer, 0, BULK, data) == TA_OK, "reading");
        if (round < 0) continue;
        writes[round] = write_speed;
        reads[round] = megabytes(start);
    }
    check(data[0] == first && data[BULK - 1] == last, "the data");

    pthread_t thread;
    check(pthread_create(&thread, NULL, call_meanwhile, NULL) == 0, "pthread_create");
    usleep(50000);
    copying = 1;
    check(ta_buffer_write(buffer, 0, BULK, data) == TA_OK, "writing");
    check(ta_buffer_read(buffer, 0, BULK, data) == TA_OK, "reading");
    copying = 0;
    pthread_join(thread, NULL);
    check(smalls > 10, "enough small calls while copying");
    // Sorted by the first quantile.
    double small_ms = quantile(small, smalls, 0.5), small_p99_ms = quantile(small, smalls, 0.99);
    printf("{\"sync_ms\": %.4f, \"async_ms\": %.4f, \"write_MBps\": %.1f, \"read_MBps\": %.1f, "
           "\"small_ms\": %.3f, \"small_p99_ms\": %.3f, \"small_max_ms\": %.3f, \"smalls\": %zu}\n",
           sync_ms, async_ms, quantile(writes, BULKS, 0.5), quantile(reads, BULKS, 0.5), small_ms, small_p99_ms,
           small[smalls - 1], smalls);
}
