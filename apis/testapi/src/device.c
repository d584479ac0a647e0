/* Devices: opening, properties, queries, messages. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "object.h"
#include "state.h"

_Atomic uint64_t library_units_runs;

static struct ta_device_st *device_new(const char *name, struct ta_device_st *parent, uint32_t units) {
    struct ta_device_st *d = object_new(KIND_DEVICE, sizeof *d);
    if (!d)
        return NULL;
    strncpy(d->name, name, sizeof d->name - 1);
    d->parent = parent;
    d->units = units;
    return d;
}

ta_status ta_device_open(const char *name, ta_device *device) {
    if (!name || !device)
        return TA_INVALID_VALUE;
    struct ta_device_st *d = device_new(name, NULL, 1);
    if (!d)
        return TA_OUT_OF_MEMORY;
    *device = d;
    return TA_OK;
}

ta_status ta_device_close(ta_device device) {
    bool found;
    free(object_release(device, KIND_DEVICE, &found));
    return found ? TA_OK : TA_INVALID_DEVICE;
}

ta_status ta_device_create(const intptr_t *properties, ta_device *device) {
    struct ta_device_st *parent = NULL;
    uint32_t units = 1;
    if (!device)
        return TA_INVALID_VALUE;
    for (const intptr_t *p = properties; p && *p; p += 2) {
        switch (*p) {
        case TA_PROPERTY_PARENT:
            parent = object_check((const void *)p[1], KIND_DEVICE);
            if (!parent)
                return TA_INVALID_DEVICE;
            break;
        case TA_PROPERTY_UNITS:
            units = (uint32_t)p[1];
            break;
        default:
            return TA_INVALID_VALUE;
        }
    }
    struct ta_device_st *d = device_new("created", parent, units);
    if (!d)
        return TA_OUT_OF_MEMORY;
    *device = d;
    return TA_OK;
}

static struct ta_device_st *permanent[2];

static void make_permanent(void) {
    permanent[0] = device_new("first", NULL, 4);
    permanent[1] = device_new("second", permanent[0], 2);
}

ta_status ta_device_list(uint32_t capacity, ta_device *devices, uint32_t *count) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_permanent);
    if (!permanent[0] || !permanent[1])
        return TA_OUT_OF_MEMORY;
    if (!devices && !count)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; devices && i < capacity && i < 2; i++)
        devices[i] = permanent[i];
    if (count)
        *count = 2;
    return TA_OK;
}

/* The usual "how large, and give it to me" query. */
static ta_status answer(const void *value, size_t n, size_t bytes, void *to, size_t *bytes_needed) {
    if (to && bytes < n)
        return TA_INVALID_VALUE;
    if (to)
        memcpy(to, value, n);
    if (bytes_needed)
        *bytes_needed = n;
    return TA_OK;
}

ta_status ta_device_query(ta_device device, uint32_t what, size_t bytes, void *value, size_t *bytes_needed) {
    static const char vendor[] = "the vendor";
    static const char *const mottos[] = {"ours is faster", "so is ours"};
    const char *owned = vendor;
    struct ta_device_st *d = object_check(device, KIND_DEVICE);
    if (!d)
        return TA_INVALID_DEVICE;
    switch (what) {
    case TA_DEVICE_NAME:
        return answer(d->name, strlen(d->name) + 1, bytes, value, bytes_needed);
    case TA_DEVICE_UNITS:
        return answer(&d->units, sizeof d->units, bytes, value, bytes_needed);
    case TA_DEVICE_PARENT:
        return answer(&d->parent, sizeof d->parent, bytes, value, bytes_needed);
    case TA_DEVICE_VENDOR:
        return answer(&owned, sizeof owned, bytes, value, bytes_needed);
    case TA_DEVICE_MOTTOS:
        return answer(mottos, sizeof mottos, bytes, value, bytes_needed);
    default:
        return TA_INVALID_VALUE;
    }
}

ta_status ta_device_units(ta_device device, uint32_t *units) {
    struct ta_device_st *d = object_check(device, KIND_DEVICE);
    if (!d)
        return TA_INVALID_DEVICE;
    if (!units)
        return TA_INVALID_VALUE;
    atomic_fetch_add(&library_units_runs, 1);
    *units = d->units;
    return TA_OK;
}

ta_status ta_buffer_units(ta_buffer buffer, uint32_t *units) {
    ta_device device = NULL;
    ta_status status = ta_buffer_device(buffer, &device);
    return status == TA_OK ? ta_device_units(device, units) : status;
}

uint64_t ta_device_units_runs(void) {
    return atomic_load(&library_units_runs);
}

ta_status ta_device_describe(ta_device device, ta_device_info *info) {
    struct ta_device_st *d = object_check(device, KIND_DEVICE);
    if (!d)
        return TA_INVALID_DEVICE;
    if (!info)
        return TA_INVALID_VALUE;
    *info = (ta_device_info){d->name, d->parent, d->units};
    return TA_OK;
}

ta_status ta_device_log(ta_device device, ta_log log, void *context) {
    struct ta_device_st *d = object_check(device, KIND_DEVICE);
    if (!d)
        return TA_INVALID_DEVICE;
    d->log = log;
    d->log_context = context;
    return TA_OK;
}

ta_status ta_device_say(ta_device device, const char *message) {
    struct ta_device_st *d = object_check(device, KIND_DEVICE);
    if (!d)
        return TA_INVALID_DEVICE;
    if (!message)
        return TA_INVALID_VALUE;
    if (d->log)
        d->log(message, d->log_context);
    return TA_OK;
}

static _Thread_local ta_device focus;

ta_status ta_focus(ta_device device) {
    if (!object_check(device, KIND_DEVICE))
        return TA_INVALID_DEVICE;
    focus = device;
    return TA_OK;
}

ta_status ta_focused(ta_device *device) {
    if (!device)
        return TA_INVALID_VALUE;
    *device = focus;
    return TA_OK;
}

ta_status ta_focus_mark(uint32_t place, uint32_t mark) {
    struct ta_device_st *d = object_check(focus, KIND_DEVICE);
    if (!d)
        return TA_INVALID_DEVICE;
    if (place >= 4)
        return TA_INVALID_VALUE;
    d->marks[place] = mark;
    return TA_OK;
}

ta_status ta_focus_marked(uint32_t place, uint32_t *mark) {
    struct ta_device_st *d = object_check(focus, KIND_DEVICE);
    if (!d)
        return TA_INVALID_DEVICE;
    if (place >= 4 || !mark)
        return TA_INVALID_VALUE;
    *mark = d->marks[place];
    return TA_OK;
}
