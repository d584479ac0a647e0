/* Structs whose pointers are read behind, moved and set. */
#include <string.h>

#include "object.h"

static const uint8_t own[4] = {9, 8, 7, 6};
static const char *const labels[] = {"the library's", "replaced", NULL};

static ta_status list(ta_transfer *t) {
    static ta_device devices[2];
    static const char *names[2];
    uint32_t count = 0;
    ta_status status = ta_device_list(2, devices, &count);
    if (status != TA_OK)
        return status;
    for (uint32_t i = 0; i < count; i++)
        names[i] = devices[i]->name;
    t->devices = devices;
    t->names = names;
    t->device_count = count;
    return TA_OK;
}

static void move(ta_transfer *t, size_t bytes) {
    switch (t->moves) {
    case TA_MOVES_FROM: t->from += bytes; break;
    case TA_MOVES_TO: t->to += bytes; break;
    case TA_MOVES_LABEL: t->label++; break;
    case TA_REPLACES_FROM: t->from = own; break;
    case TA_CLEARS_FROM: t->from = NULL; break;
    case TA_REPLACES_LABEL: t->label = labels[1]; break;
    default: break;
    }
}

ta_status ta_transfer_run(ta_transfer *transfer) {
    if (!transfer || (transfer->bytes && !transfer->from) || (transfer->room && !transfer->to))
        return TA_INVALID_VALUE;
    size_t bytes = transfer->bytes < transfer->room ? transfer->bytes : transfer->room;
    if (bytes)
        memcpy(transfer->to, transfer->from, bytes);
    ta_status status = transfer->devices ? TA_OK : list(transfer);
    transfer->units = 0;
    for (uint32_t i = 0; status == TA_OK && i < transfer->device_count; i++) {
        struct ta_device_st *device = object_check(transfer->devices[i], KIND_DEVICE);
        if (!device)
            return TA_INVALID_DEVICE;
        transfer->units += device->units;
    }
    if (!transfer->label)
        transfer->label = labels[0];
    if (status == TA_OK)
        move(transfer, bytes);
    return status;
}

const char *const *ta_transfer_labels(void) { return labels; }

#define HAS(o, member) ((o)->struct_size >= offsetof(ta_options, member) + sizeof (o)->member)

ta_status ta_options_check(const ta_options *o) {
    if (!o || !HAS(o, level) || o->struct_size > 4096)
        return TA_INVALID_VALUE;
    for (size_t at = sizeof *o; at < o->struct_size; at++)
        if (((const char *)o)[at])
            return TA_INVALID_VALUE;
    return TA_OK;
}

ta_status ta_options_apply(ta_options *o) {
    if (ta_options_check(o) != TA_OK)
        return TA_INVALID_VALUE;
    uint64_t sum = o->level;
    for (uint64_t i = 0; HAS(o, more_count) && o->more && i < o->more_count; i++)
        sum += o->more[i];
    if (HAS(o, sum))
        o->sum = sum;
    if (HAS(o, device) && o->device) {
        struct ta_device_st *device = object_check(o->device, KIND_DEVICE);
        if (!device)
            return TA_INVALID_DEVICE;
        if (HAS(o, units))
            o->units = device->units;
    }
    if (HAS(o, struct_seen))
        o->struct_seen = o->struct_size < sizeof *o ? o->struct_size : sizeof *o;
    return TA_OK;
}
