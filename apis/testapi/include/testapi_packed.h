/* Functions that take one struct of arguments, results among them. */
#ifndef TESTAPI_PACKED_H
#define TESTAPI_PACKED_H

#include "testapi.h"
#include <stddef.h>
#include <stdint.h>

typedef struct ta_parcel_object *ta_parcel;

/* A name and a value of some kind. */
typedef struct ta_fact {
    const char *name;
    size_t name_size;
    uint32_t kind; /* 0: number, 1: text, 2: list of numbers */
    union {
        const char *text;
        int64_t number;
        const int64_t *list;
    };
    size_t value_size;
} ta_fact;
typedef struct ta_corner {
    int32_t x, y;
} ta_corner;

typedef struct ta_parcel_pack_args {
    size_t struct_size;
    const char *label;
    size_t label_size;
    const int64_t *values;
    size_t count;
    ta_parcel parcel; /* out */
    int64_t sum;      /* out */
} ta_parcel_pack_args;
/* The label need not end with a zero. */
ta_status ta_parcel_pack(ta_parcel_pack_args *args);

typedef struct ta_parcel_facts_args {
    size_t struct_size;
    ta_parcel parcel;
    size_t count;         /* out */
    const ta_fact *facts; /* out: the parcel's own */
    ta_corner corner;     /* out */
} ta_parcel_facts_args;
ta_status ta_parcel_facts(ta_parcel_facts_args *args);

typedef struct ta_parcel_move_args {
    size_t struct_size;
    ta_parcel parcel;
    ta_corner by;
    size_t room;   /* in: elements of `values`, out: values */
    int64_t *values; /* out */
    uint8_t last;  /* out; behind what the first version had */
} ta_parcel_move_args;
/* Adds `by` to the corner. Copies the values where there is room for all. */
ta_status ta_parcel_move(ta_parcel_move_args *args);

typedef struct ta_parcel_watch_args {
    size_t struct_size;
    ta_parcel parcel;
    void (*watch)(ta_parcel parcel, int64_t sum, void *context);
    void *context;
} ta_parcel_watch_args;
/* Calls `watch` once, before it returns. */
ta_status ta_parcel_watch(ta_parcel_watch_args *args);

/* Without a size. */
typedef struct ta_parcel_end_args {
    ta_parcel parcel;
    uint64_t left; /* out: parcels that there are still */
} ta_parcel_end_args;
ta_status ta_parcel_end(ta_parcel_end_args *args);

#endif
