/* Functions that take one struct of arguments. */
#include <stdlib.h>
#include <string.h>

#include "testapi_packed.h"

struct ta_parcel_object {
    ta_fact facts[3];
    ta_corner corner;
    char *label;
    int64_t *values;
    size_t count;
    int64_t sum;
};

static uint64_t parcels;

/* Bytes that a version of a function needs of its struct. */
#define HAS(type, member, args) ((args) && (args)->struct_size >= offsetof(type, member) + sizeof (args)->member)

ta_status ta_parcel_pack(ta_parcel_pack_args *args) {
    if (!HAS(ta_parcel_pack_args, sum, args))
        return TA_INVALID_VALUE;
    struct ta_parcel_object *parcel = calloc(1, sizeof *parcel);
    parcel->label = malloc(args->label_size);
    memcpy(parcel->label, args->label, args->label_size);
    parcel->values = calloc(args->count + 1, sizeof *parcel->values);
    parcel->count = args->count;
    for (size_t i = 0; i < args->count; i++) {
        parcel->values[i] = args->values[i];
        parcel->sum += args->values[i];
    }
    parcel->facts[0] = (ta_fact){.name = "label", .name_size = 5, .kind = 1, .text = parcel->label, .value_size = args->label_size};
    parcel->facts[1] = (ta_fact){.name = "sum", .name_size = 3, .kind = 0, .number = parcel->sum};
    parcel->facts[2] = (ta_fact){.name = "values", .name_size = 6, .kind = 2, .list = parcel->values, .value_size = args->count};
    __atomic_add_fetch(&parcels, 1, __ATOMIC_SEQ_CST);
    args->parcel = parcel;
    args->sum = parcel->sum;
    return TA_OK;
}

ta_status ta_parcel_facts(ta_parcel_facts_args *args) {
    if (!HAS(ta_parcel_facts_args, corner, args) || !args->parcel)
        return TA_INVALID_VALUE;
    args->count = 3;
    args->facts = args->parcel->facts;
    args->corner = args->parcel->corner;
    return TA_OK;
}

ta_status ta_parcel_move(ta_parcel_move_args *args) {
    if (!HAS(ta_parcel_move_args, values, args) || !args->parcel)
        return TA_INVALID_VALUE;
    struct ta_parcel_object *parcel = args->parcel;
    parcel->corner.x += args->by.x;
    parcel->corner.y += args->by.y;
    if (args->values && args->room >= parcel->count)
        memcpy(args->values, parcel->values, parcel->count * sizeof *parcel->values);
    args->room = parcel->count;
    if (HAS(ta_parcel_move_args, last, args))
        args->last = 77;
    return TA_OK;
}

ta_status ta_parcel_watch(ta_parcel_watch_args *args) {
    if (!HAS(ta_parcel_watch_args, context, args) || !args->parcel)
        return TA_INVALID_VALUE;
    if (args->watch)
        args->watch(args->parcel, args->parcel->sum, args->context);
    return TA_OK;
}

ta_status ta_parcel_end(ta_parcel_end_args *args) {
    if (!args || !args->parcel)
        return TA_INVALID_VALUE;
    free(args->parcel->label);
    free(args->parcel->values);
    free(args->parcel);
    args->left = __atomic_sub_fetch(&parcels, 1, __ATOMIC_SEQ_CST);
    return TA_OK;
}
