/* The needs of a fresh API server to take a session over: the library, initialized as often as the session has done so, and the names
 * of parts of devices. Calls of the log are made again first, then `nvml_load` corrects the count. */
#include "nvml_server.h"
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* Initializations that are not shut down yet, of this process; the state of the session is this number. */
static _Atomic uint64_t initialized;
/* Set by the first successful initialization of this process. */
static atomic_flag has_first = ATOMIC_FLAG_INIT;

static nvmlReturn_t counted(nvmlReturn_t result) {
    if (result == NVML_SUCCESS)
        atomic_fetch_add(&initialized, 1);
    return result;
}

static nvmlReturn_t initialize(void) {
    return counted(nvmlInit_v2());
}

void *nvml_init_function(void) {
    return (void *)initialize;
}

static nvmlReturn_t initialize_with_flags(unsigned int flags) {
    return counted(nvmlInitWithFlags(flags));
}

void *nvml_init_flags_function(void) {
    return (void *)initialize_with_flags;
}

static nvmlReturn_t shut_down(void) {
    nvmlReturn_t result = nvmlShutdown();
    if (result == NVML_SUCCESS)
        atomic_fetch_sub(&initialized, 1);
    return result;
}

void *nvml_shutdown_function(void) {
    return (void *)shut_down;
}

/* 0 for the first initialization of this process, else 1: the first one keeps its place in the log, before all queries, whatever is
 * initialized later. */
uint64_t nvml_init_key(void) {
    return atomic_flag_test_and_set(&has_first);
}

int64_t nvml_save(uint64_t offset, void *to, size_t bytes) {
    uint64_t count = atomic_load(&initialized);
    if (offset >= sizeof count)
        return 0;
    size_t left = sizeof count - offset;
    size_t written = left < bytes ? left : bytes;
    memcpy(to, (const char *)&count + offset, written);
    return (int64_t)written;
}

/* The snapshot's bytes come from the old API server, which may lie: it can only make its own session initialize more often. */
int nvml_load(uint64_t offset, const void *from, size_t bytes) {
    enum { MOST = 1 << 16 };
    uint64_t wanted;
    if (offset != 0 || bytes != sizeof wanted)
        return -1;
    memcpy(&wanted, from, sizeof wanted);
    if (wanted > MOST)
        return -1;
    while (atomic_load(&initialized) < wanted)
        if (initialize() != NVML_SUCCESS)
            return -1;
    while (atomic_load(&initialized) > wanted)
        if (shut_down() != NVML_SUCCESS)
            return -1;
    return 0;
}
