// The price of a cache line that goes from one core to another and back:
// two processes, each pinned to a CPU, nothing in between. The floor of any
// synchronous call through shared memory.
//
//   pingpong [ROUNDS]      prints {"round_trip_ns": median of the batches}
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "timing.h"

#define BATCH 1000

struct lines {
    _Alignas(128) _Atomic uint64_t ping;
    _Alignas(128) _Atomic uint64_t pong;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Pins this process to the n-th CPU that it may use.
static int pin(int n) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && n-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            return sched_setaffinity(0, sizeof one, &one);
        }
    return -1;
}

int main(int argc, char **argv) {
    long batches = (argc > 1 ? atol(argv[1]) : 500000) / BATCH;
    if (batches < 1) batches = 1;
    struct lines *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double *times = malloc((size_t)batches * sizeof *times);
    if (l == MAP_FAILED || !times) return perror("pingpong"), 1;
    pid_t child = fork();
    if (child < 0) return perror("fork"), 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (pin(1)) return 2;
        for (uint64_t n = 1;; n++) {
            while (atomic_load_explicit(&l->ping, memory_order_acquire) < n) relax();
            atomic_store_explicit(&l->pong, n, memory_order_release);
        }
    }
    int status = 0;
    if (pin(0)) status = 2;
    uint64_t n = 0;
    for (long b = 0; b < batches && !status; b++) {
        uint64_t start = now();
        for (int i = 0; i < BATCH; i++) {
            atomic_store_explicit(&l->ping, ++n, memory_order_release);
            while (atomic_load_explicit(&l->pong, memory_order_acquire) < n) {
                relax();
                // The partner may have found no CPU of its own.
                if (b == 0 && i == 0 && waitpid(child, NULL, WNOHANG) == child) {
                    fprintf(stderr, "pingpong: two CPUs are needed\n");
                    return 2;
                }
            }
        }
        times[b] = (double)(now() - start) / BATCH;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (status) return fprintf(stderr, "pingpong: cannot choose a CPU\n"), status;
    qsort(times, (size_t)batches, sizeof *times, by_real_value);
    printf("{\"round_trip_ns\": %.1f, \"best_ns\": %.1f}\n", times[batches / 2], times[0]);
}
