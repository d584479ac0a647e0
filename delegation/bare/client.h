/* What the client's programs leave in RESULTS, read by the monitor. */
#pragma once
#include <stdint.h>

#define CALLS 10000

struct measured {
    uint64_t ticks, exits, wrong;
};

struct results {
    struct measured delegated, by_exit, arch_prctl, plain, null_exit, null_system_call;
    uint64_t statuses[3];
    uint64_t fs_before, fs_after, replies;
    uint64_t state, state_kept, refused;
    /* Of revocations: the value that the page has at first, and the last one read. */
    uint64_t first, last;
};

void client_measure(void);
void client_call(uint64_t handler, uint64_t argument);
void client_interrupted(uint64_t handler, uint64_t rounds);
void client_state(void);
void client_refused(uint64_t rounds);
void client_revocations(uint64_t rounds);
