/* Calls without data. */
#include <stdatomic.h>

#include "state.h"

_Atomic uint64_t library_noops;

ta_status ta_noop(void) {
    return TA_OK;
}

ta_status ta_noop_async(void) {
    atomic_fetch_add_explicit(&library_noops, 1, memory_order_relaxed);
    return TA_OK;
}

uint64_t ta_noop_count(void) {
    return atomic_load_explicit(&library_noops, memory_order_relaxed);
}

uint64_t ta_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

int32_t ta_add(int32_t a, int32_t b) {
    return (int32_t)((uint32_t)a + (uint32_t)b);
}

int32_t ta_add_three(int32_t a, int32_t b, int32_t c) {
    return ta_add(ta_add(a, b), c);
}

const char *ta_version(void) {
    return "testapi 1.0";
}
