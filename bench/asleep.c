// What two sides that both sleep cost each other: both run on one CPU, so that neither can spin for the other.
//
//   asleep calls N     after a line of standard input: N synchronous calls; then it waits for the end of standard input
//   asleep pair N      the floor: two processes that wake each other by a futex in shared memory, each in a session of its
//                      own, as programs and API servers are; prints {"cpu_ns": ...} of both sides for one round trip
#define _GNU_SOURCE
#include "testapi.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// Nanoseconds that this process has run.
static double ran(void) {
    FILE *file = fopen("/proc/self/schedstat", "r");
    double ns = 0;
    if (!file || fscanf(file, "%lf", &ns) != 1) exit(3);
    fclose(file);
    return ns;
}

static void await(_Atomic uint32_t *word, uint32_t wanted) {
    for (uint32_t seen; (seen = atomic_load(word)) != wanted;) syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL);
}

static void set(_Atomic uint32_t *word, uint32_t value) {
    atomic_store(word, value);
    syscall(SYS_futex, word, FUTEX_WAKE, 1);
}

static int pair(long rounds) {
    size_t bytes = 3 * 4096;
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return perror("mmap"), 1;
    _Atomic uint32_t *there = (void *)shared, *back = (void *)(shared + 4096);
    double *other = (void *)(shared + 2 * 4096);
    pid_t child = fork();
    if (child < 0) return perror("fork"), 1;
    if (child == 0) {
        setsid();
        double before = ran();
        for (long n = 1; n <= rounds; n++) {
            await(there, (uint32_t)n);
            set(back, (uint32_t)n);
        }
        *other = ran() - before;
        _exit(0);
    }
    double before = ran();
    for (long n = 1; n <= rounds; n++) {
        set(there, (uint32_t)n);
        await(back, (uint32_t)n);
    }
    double own = ran() - before;
    if (waitpid(child, NULL, 0) != child) return 1;
    printf("{\"cpu_ns\": %.1f}\n", (own + *other) / (double)rounds);
    return 0;
}

int main(int argc, char **argv) {
    long count = argc > 2 ? atol(argv[2]) : 0;
    if (count < 1) return 2;
    if (!strcmp(argv[1], "pair")) return pair(count);
    char line[16];
    for (int i = 0; i < 1000; i++) ta_noop(); // warm-up
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (long i = 0; i < count; i++) ta_noop();
        puts("done");
        fflush(stdout);
    }
    return 0;
}
