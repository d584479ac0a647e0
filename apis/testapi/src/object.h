/* Objects of the library: a live list makes every bad handle detectable. */
#ifndef TESTAPI_OBJECT_H
#define TESTAPI_OBJECT_H

#include <pthread.h>
#include <stdbool.h>

#include "testapi.h"

enum kind { KIND_DEVICE = 1, KIND_BUFFER, KIND_STREAM, KIND_JOB, KIND_KERNEL, KIND_EVENT, KIND_MARKER, KIND_LEDGER, KIND_LATCH };

/* First member of every object. */
struct object {
    const void *const *dispatch; /* what a boxed handle's first word is */
    struct object *next;
    enum kind kind;
    uint32_t references;
};

/* Allocates a zeroed object with one reference and enters it in the live list. */
void *object_new(enum kind kind, size_t bytes);
/* The object if `handle` is a live one of this kind, else NULL. Never reads a dead handle. */
void *object_check(const void *handle, enum kind kind);
/* The same, and no object ends before object_let_go(), which must follow in either case. */
void *object_hold(const void *handle, enum kind kind);
void object_let_go(void);
bool object_retain(void *handle, enum kind kind);
/* Drops a reference; the object once the last one is gone (the caller frees it), else NULL. */
void *object_release(void *handle, enum kind kind, bool *found);

struct ta_device_st {
    struct object object;
    char name[64];
    struct ta_device_st *parent;
    uint32_t units;
    ta_log log;
    void *log_context;
    uint32_t marks[4];
};

struct ta_buffer_st {
    struct object object;
    struct ta_device_st *device;
    size_t bytes;
    unsigned char *data;
    bool wrapped; /* `data` is the application's */
    void *tag;
    void *mapped;
};

struct ta_event_st {
    struct object object;
    uint64_t value;
};

#endif
