/* Declarations that the parts of the driver share: the lock, objects, devices and contexts. */
#ifndef REFDRIVER_DRIVER_H
#define REFDRIVER_DRIVER_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "print_buffer.h"

/* One lock for everything but running work and device memory's table: taken by call_begin, so implementations
 * run with it held. Waiting for driver_changed lets others go on. */
extern pthread_mutex_t driver_lock;
extern pthread_cond_t driver_changed;

/* --- objects --- */

enum kind {
    KIND_CONTEXT = 1,
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,
    KIND_FUNCTION,
    KIND_LIBRARY,
    KIND_KERNEL,
    KIND_GRAPH,
    KIND_NODE,
    KIND_GRAPH_EXEC,
    KIND_POOL,
    KIND_PHYSICAL,
    KIND_LINKER,
    KIND_USER_OBJECT,
    KIND_GREEN,
    KIND_RESOURCE,
};

/* First member of every object. */
struct object {
    struct object *next;
    enum kind kind;
    unsigned references;
    void (*destroy)(void *object); /* what the object owns, when the last reference is gone; may be NULL */
};

/* A zeroed object with one reference, its owner's; NULL where memory is out. */
void *object_new(enum kind kind, size_t bytes, void (*destroy)(void *object));
/* The object if `handle` is a live one of this kind, else NULL. Never reads a dead handle. */
void *object_check(const void *handle, enum kind kind);
void object_hold(void *object);
void object_drop(void *object);
/* The handle is no longer valid; drops the owner's reference. */
void object_end(void *object);
/* One that lives on without its owner has one again, and its handle is valid. */
void object_revive(void *object);

/* --- devices --- */

#define DEVICE_MAXIMUM 8

struct device {
    int number; /* among all devices of the machine */
    size_t memory, used;
    CUcontext primary; /* made by cuInit */
    CUmemoryPool default_pool, pool;
};

extern int device_count;
extern struct device devices[DEVICE_MAXIMUM];

/* Reads the text of REFCUDA_MEMORY: bytes of each device, or FILE:BYTES; false: there is no such file (shared_memory.c). */
bool shared_memory_start(const char *text, size_t *bytes);
/* Changes what this process has of a device; false: there is not so much. */
bool device_take(struct device *device, size_t bytes);
void device_give(struct device *device, size_t bytes);
/* What a context takes for itself of its device. */
extern size_t context_bytes;
/* Bytes that are free. */
size_t device_available(struct device *device);

/* Reads REFCUDA_DEVICES, CUDA_VISIBLE_DEVICES, REFCUDA_MEMORY and REFCUDA_CONTEXT. */
CUresult devices_start(void);
/* Which of `there` devices this process sees, and how many that are (visible.c). */
CUresult visible_devices(int there, int numbers[DEVICE_MAXIMUM], int *count);
enum { UUID_TEXT = sizeof("GPU-00112233-4455-6677-8899-aabbccddeeff") };
void device_uuid_text(int number, char text[UUID_TEXT]);
/* -1: this process does not see it. */
CUdevice device_with_number(int number);
static inline bool device_valid(CUdevice device) { return device >= 0 && device < device_count; }
int device_attribute(CUdevice_attribute attribute, CUdevice device);

/* --- contexts --- */

struct CUctx_st {
    struct object object;
    unsigned long long id;
    CUdevice device;
    bool primary, active;
    unsigned retained; /* of a primary context */
    size_t taken; /* of its device's memory, for itself */
    unsigned flags;
    CUresult error; /* sticks until the context ends */
    CUstream legacy, streams; /* the default stream; all streams, linked by `sibling` */
    size_t limits[CU_LIMIT_MAX];
    bool prints; /* a kernel that may print was launched, or is ready to be: from then on the buffer for it keeps its size */
    struct print_buffer printed;
    CUfunc_cache cache;
    bool peers[DEVICE_MAXIMUM];
};

CUcontext context_create(CUdevice device, bool primary);
/* The current context, which is active and has no error; else an error. */
CUresult context_need(CUcontext *context);
/* Writes what kernels of the current context printed, if there is one, also after an error. */
void context_flush(void);
/* Waits for all work of a context; its error, if any. */
CUresult context_drain(CUcontext context);

/* The default stream of the running call, for stream 0. */
extern _Thread_local CUstream default_stream;
/* The context that the running call ended: what libraries stored for it ends after the lock is free again. */
extern _Thread_local CUcontext ended_context;

#endif
