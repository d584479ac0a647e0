/* Time. */
#ifndef AVIARY_CUDA_CLOCK_H
#define AVIARY_CUDA_CLOCK_H
#include <time.h>

/* CLOCK_MONOTONIC in seconds. */
static inline double cuda_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
