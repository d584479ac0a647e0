/* Latches: objects that may refuse to end, and functions that return less than 0 when they fail. */
#include "testapi_latches.h"

#include <stdlib.h>

#include "object.h"

struct ta_latch_st {
    struct object object;
    uint32_t stuck, at_first;
    size_t width;
    uint64_t place;
    int64_t asked;
};

ta_latch ta_latch_open(uint32_t stuck) {
    struct ta_latch_st *latch = object_new(KIND_LATCH, sizeof *latch);
    static _Atomic uint64_t opened;
    if (latch) {
        latch->stuck = latch->at_first = stuck;
        latch->place = ++opened;
    }
    return latch;
}

int ta_latch_facts(ta_latch latch, uint32_t *stuck, uint64_t *place) {
    if (!object_check(latch, KIND_LATCH) || !stuck || !place)
        return -1;
    latch->asked++;
    *stuck = latch->at_first;
    *place = latch->place;
    return 0;
}

ta_count ta_latch_asked(ta_latch latch) { return object_check(latch, KIND_LATCH) ? latch->asked : -2; }

int ta_latch_shut(ta_latch latch, uint32_t *left) {
    if (!object_check(latch, KIND_LATCH))
        return -1;
    if (latch->stuck) {
        latch->stuck--;
        return -1;
    }
    bool found = false;
    if (left)
        *left = latch->stuck;
    free(object_release(latch, KIND_LATCH, &found));
    return 0;
}

int ta_latch_close(ta_latch latch) { return ta_latch_shut(latch, NULL); }

ta_count ta_latch_count(ta_latch latch, int32_t *to, size_t n) {
    if (!object_check(latch, KIND_LATCH) || !to)
        return -2;
    if (n > 100)
        return -3;
    for (size_t i = 0; i < n; i++)
        to[i] = (int32_t)i + 1;
    return (ta_count)n;
}

size_t ta_latch_widen(ta_latch latch, size_t by) {
    if (!object_check(latch, KIND_LATCH) || by > 1000)
        return (size_t)-20;
    return latch->width += by;
}

/* For what saves and restores a latch on the server; not of the API. */
int ta_latch_own_values(ta_latch latch, uint64_t values[2]);
int ta_latch_own_values(ta_latch latch, uint64_t values[2]) {
    if (!object_check(latch, KIND_LATCH))
        return -1;
    values[0] = latch->stuck;
    values[1] = latch->width;
    return 0;
}
int ta_latch_restore(ta_latch latch, const uint64_t values[2]);
int ta_latch_restore(ta_latch latch, const uint64_t values[2]) {
    if (!object_check(latch, KIND_LATCH))
        return -1;
    latch->stuck = (uint32_t)values[0];
    latch->width = values[1];
    return 0;
}
