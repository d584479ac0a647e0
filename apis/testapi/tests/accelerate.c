/* A tenant that keeps the synthetic accelerator busy. It begins and ends at given times, so that several of them
   can be compared over the time in which all were there.
     accelerate CLIENT NANOSECONDS BATCH PAUSE_US BEGIN END
   BATCH submissions, then a wait for all of them, then a pause, again and again from BEGIN to END (seconds of
   CLOCK_MONOTONIC). NANOSECONDS may be A-B: a repeatable sequence of times between. Prints how many were submitted. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: accelerate CLIENT NANOSECONDS BATCH PAUSE_US BEGIN END\n");
        return 2;
    }
    uint32_t client = (uint32_t)atoi(argv[1]);
    char *rest;
    uint64_t shortest = strtoull(argv[2], &rest, 10), longest = *rest == '-' ? strtoull(rest + 1, NULL, 10) : shortest;
    long batch = atol(argv[3]), pause = atol(argv[4]), done = 0;
    double begin = atof(argv[5]), end = atof(argv[6]);
    uint64_t random = client + 1;
    /* Attaches before the time begins. */
    if (ta_accelerator_finish() != TA_OK)
        return 1;
    while (now() < begin)
        usleep(500);
    while (now() < end) {
        for (long i = 0; i < batch; i++, done++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t time = shortest + (random >> 33) % (longest - shortest + 1);
            if (ta_accelerator_submit(client, time) != TA_OK)
                return 1;
        }
        if (ta_accelerator_finish() != TA_OK)
            return 1;
        if (pause)
            usleep((useconds_t)pause);
    }
    printf("%ld\n", done);
    return 0;
}
