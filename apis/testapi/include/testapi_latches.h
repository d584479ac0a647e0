/*
 * Functions that say by a number, and without an error type, how they ended.
 */
#ifndef TESTAPI_LATCHES_H
#define TESTAPI_LATCHES_H

#include "testapi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ta_latch_st *ta_latch;
/* What such a function returns: less than 0 if it failed. */
typedef int64_t ta_count;

/* A latch whose first `stuck` attempts to close it fail. NULL: there is no memory. */
ta_latch ta_latch_open(uint32_t stuck);
/* 0, or -1: it is stuck, and still open. */
int ta_latch_close(ta_latch latch);
/* The same, and `left` is how often it will still be stuck (unchanged where the call fails). */
int ta_latch_shut(ta_latch latch, uint32_t *left);
/* Writes 1, 2, 3 ... and returns how many; more than 100 are too many, and none is written: -3. */
ta_count ta_latch_count(ta_latch latch, int32_t *to, size_t n);
/* Makes it wider, and returns how wide it is; by more than 1,000 at once: (size_t)-20. */
size_t ta_latch_widen(ta_latch latch, size_t by);
/* How often it was to be stuck when it was opened, and its place among all latches of the process: neither changes. -1: not
 * a latch. */
int ta_latch_facts(ta_latch latch, uint32_t *stuck, uint64_t *place);
/* How often the library has been asked for the facts of a latch. */
ta_count ta_latch_asked(ta_latch latch);

#ifdef __cplusplus
}
#endif
#endif
