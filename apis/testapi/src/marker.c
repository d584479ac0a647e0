/* Markers: values that are created without waiting, and the handles that stand for none. */
#include <stdlib.h>

#include "object.h"

struct ta_marker_st {
    struct object object;
    uint64_t value, first;
    const uint64_t *cells;
    size_t count;
};

static uint64_t live;

static bool predefined(ta_marker marker) {
    return marker == TA_MARKER_FIRST || marker == TA_MARKER_LAST;
}

ta_status ta_marker_create(ta_marker *marker, uint64_t value, size_t bytes) {
    (void)bytes; /* there is no device that could run out of it */
    if (!marker || value == 0)
        return TA_INVALID_VALUE;
    if (value == TA_MARKER_HEAVY)
        return TA_OUT_OF_MEMORY;
    struct ta_marker_st *m = object_new(KIND_MARKER, sizeof *m);
    if (!m)
        return TA_OUT_OF_MEMORY;
    m->value = m->first = value;
    __atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
    *marker = m;
    return TA_OK;
}

ta_status ta_markers_create(uint32_t count, ta_marker *markers, uint64_t first) {
    if (!markers || first == 0)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        ta_status status = ta_marker_create(&markers[i], first + i, 0);
        if (status != TA_OK)
            return status;
    }
    return TA_OK;
}

ta_status ta_marker_make(ta_marker *marker, uint64_t value, int32_t wait) {
    (void)wait;
    return ta_marker_create(marker, value, 0);
}

ta_marker ta_marker_copy(ta_marker marker, ta_status *error) {
    uint64_t value = 0;
    ta_marker copy = NULL;
    ta_status status = ta_marker_value(marker, &value);
    if (status == TA_OK)
        status = ta_marker_create(&copy, value, 0);
    if (error)
        *error = status;
    return copy;
}

ta_status ta_marker_watch(const uint64_t *cells, size_t count, ta_marker *marker) {
    if (!cells || (count && cells[0] == UINT64_MAX))
        return TA_INVALID_VALUE;
    ta_status status = ta_marker_create(marker, 1, 0);
    if (status == TA_OK) {
        (*marker)->value = 0;
        (*marker)->cells = cells;
        (*marker)->count = count;
    }
    return status;
}

ta_status ta_marker_first_value(ta_marker marker, uint64_t *value) {
    struct ta_marker_st *m = object_hold(marker, KIND_MARKER);
    if (m && value)
        *value = m->first;
    object_let_go();
    return !m ? TA_INVALID_MARKER : value ? TA_OK : TA_INVALID_VALUE;
}

ta_status ta_marker_destroy(ta_marker marker) {
    bool found;
    free(object_release(marker, KIND_MARKER, &found));
    if (found)
        __atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
    return found ? TA_OK : TA_INVALID_MARKER;
}

ta_status ta_marker_destroy_async(ta_marker marker) {
    return ta_marker_destroy(marker);
}

static ta_status change(ta_marker marker, uint64_t value, bool add) {
    struct ta_marker_st *m = object_hold(marker, KIND_MARKER);
    if (m)
        m->value = add ? m->value + value : value;
    object_let_go();
    return m ? TA_OK : TA_INVALID_MARKER;
}

ta_status ta_marker_set(ta_marker marker, uint64_t value) {
    return change(marker, value, false);
}

ta_status ta_marker_add(ta_marker marker, uint64_t value) {
    return change(marker, value, true);
}

ta_status ta_marker_value(ta_marker marker, uint64_t *value) {
    if (!value)
        return TA_INVALID_VALUE;
    if (predefined(marker)) {
        *value = marker == TA_MARKER_FIRST ? 0 : UINT64_MAX;
        return TA_OK;
    }
    struct ta_marker_st *m = object_hold(marker, KIND_MARKER);
    if (m) {
        *value = m->value;
        for (size_t i = 0; i < m->count; i++)
            *value += m->cells[i];
    }
    object_let_go();
    return m ? TA_OK : TA_INVALID_MARKER;
}

/* Not in the header: for the code that saves and restores a marker. Without the cells, which are the application's. */
ta_status ta_marker_own_values(ta_marker marker, uint64_t *value, uint64_t *first);
ta_status ta_marker_own_values(ta_marker marker, uint64_t *value, uint64_t *first) {
    struct ta_marker_st *m = object_hold(marker, KIND_MARKER);
    if (m) {
        *value = m->value;
        *first = m->first;
    }
    object_let_go();
    return m ? TA_OK : TA_INVALID_MARKER;
}

ta_status ta_marker_restore(ta_marker marker, uint64_t value, uint64_t first);
ta_status ta_marker_restore(ta_marker marker, uint64_t value, uint64_t first) {
    struct ta_marker_st *m = object_hold(marker, KIND_MARKER);
    if (m) {
        m->value = value;
        m->first = first;
    }
    object_let_go();
    return m ? TA_OK : TA_INVALID_MARKER;
}

ta_marker ta_marker_greatest(uint32_t count, const ta_marker *markers) {
    ta_marker greatest = TA_MARKER_LAST;
    uint64_t most = 0;
    for (uint32_t i = 0; markers && i < count; i++) {
        uint64_t value = 0;
        if (ta_marker_value(markers[i], &value) == TA_OK && (i == 0 || value > most)) {
            most = value;
            greatest = markers[i];
        }
    }
    return greatest;
}

ta_status ta_notes_read(uint32_t count, ta_note *notes) {
    for (uint32_t i = 0; notes && i < count; i++) {
        ta_status status = ta_marker_value(notes[i].marker, &notes[i].value);
        if (status != TA_OK)
            return status;
    }
    return TA_OK;
}

ta_status ta_marker_next(ta_marker marker, ta_marker *next) {
    if (!next)
        return TA_INVALID_VALUE;
    if (!predefined(marker) && !object_check(marker, KIND_MARKER))
        return TA_INVALID_MARKER;
    *next = marker == TA_MARKER_LAST ? TA_MARKER_FIRST : TA_MARKER_LAST;
    return TA_OK;
}

uint64_t ta_markers_live(void) {
    return __atomic_load_n(&live, __ATOMIC_RELAXED);
}

ta_status ta_object_kind(ta_buffer object, uint32_t *kind) {
    if (!kind)
        return TA_INVALID_VALUE;
    *kind = object_check(object, KIND_BUFFER)   ? TA_IS_BUFFER
            : object_check(object, KIND_MARKER) ? TA_IS_MARKER
            : object_check(object, KIND_DEVICE) ? TA_IS_DEVICE
                                                : 0;
    return *kind ? TA_OK : TA_INVALID_BUFFER;
}
