/* Errors, order, resources. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

ta_status ta_fail(ta_status status) {
    return status;
}

ta_status ta_fail_async(ta_status status) {
    return status;
}

volatile uint64_t library_mark;

ta_status ta_mark_async(uint64_t value) {
    library_mark = value;
    return TA_OK;
}

uint64_t ta_mark(void) {
    return library_mark;
}

volatile uint64_t library_baton, library_disorder;

static void pass(uint64_t number) {
    if (number != library_baton + 1)
        library_disorder = library_disorder + 1;
    library_baton = number;
}

ta_status ta_baton_async(uint64_t number) {
    pass(number);
    return TA_OK;
}

uint64_t ta_baton(uint64_t number) {
    pass(number);
    return library_disorder;
}

static pthread_mutex_t trail_lock = PTHREAD_MUTEX_INITIALIZER;
uint32_t library_trail[TRAIL];
size_t library_trail_length;

ta_status ta_trail_async(uint32_t value) {
    ta_status status = TA_OUT_OF_MEMORY;
    pthread_mutex_lock(&trail_lock);
    if (library_trail_length < TRAIL) {
        library_trail[library_trail_length++] = value;
        status = TA_OK;
    }
    pthread_mutex_unlock(&trail_lock);
    return status;
}

ta_status ta_trail_read(uint32_t *values, size_t capacity, size_t *count) {
    if (!values || !count)
        return TA_INVALID_VALUE;
    pthread_mutex_lock(&trail_lock);
    *count = library_trail_length < capacity ? library_trail_length : capacity;
    memcpy(values, library_trail, *count * sizeof *library_trail);
    library_trail_length = 0;
    pthread_mutex_unlock(&trail_lock);
    return TA_OK;
}

ta_status ta_pick(uint32_t index, uint32_t *value) {
    if (index >= 16 || !value)
        return TA_INVALID_VALUE;
    *value = index * index;
    return TA_OK;
}

_Atomic uint64_t library_reserved;

ta_status ta_reserve(uint64_t bytes) {
    if (!bytes)
        return TA_INVALID_VALUE;
    atomic_fetch_add(&library_reserved, bytes);
    return TA_OK;
}

ta_status ta_unreserve(uint64_t bytes) {
    if (bytes > atomic_load(&library_reserved))
        return TA_INVALID_VALUE;
    atomic_fetch_sub(&library_reserved, bytes);
    return TA_OK;
}

ta_status ta_reserved(uint64_t *bytes) {
    if (!bytes)
        return TA_INVALID_VALUE;
    *bytes = atomic_load(&library_reserved);
    return TA_OK;
}

_Atomic uint64_t library_last_work;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

ta_status ta_work(uint32_t microseconds) {
    uint64_t start = now(), spent;
    do {
        spent = now() - start;
    } while (spent < (uint64_t)microseconds * 1000);
    atomic_store(&library_last_work, spent);
    return TA_OK;
}

uint64_t ta_last_work(void) {
    return atomic_load(&library_last_work);
}

ta_status ta_legacy(void) {
    return TA_UNSUPPORTED;
}

int32_t ta_legacy_level(void) {
    return 7;
}

int32_t ta_process(void) {
    return getpid();
}

size_t ta_element_bytes(uint32_t kind) {
    return kind < 4 ? (size_t)1 << kind : 0;
}
