/* One piece of work for a stream or a graph: everything that it needs, checked and copied. */
#ifndef REFDRIVER_OPERATION_H
#define REFDRIVER_OPERATION_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum operation_kind {
    OPERATION_EMPTY,
    OPERATION_COPY,
    OPERATION_FILL,
    OPERATION_KERNEL,
    OPERATION_HOST,
    OPERATION_CALLBACK, /* of cuStreamAddCallback */
    OPERATION_RECORD,
    OPERATION_WAIT,
    OPERATION_FREE,
    OPERATION_WRITE_VALUE,
    OPERATION_WAIT_VALUE,
    OPERATION_GRAPH, /* only as a node */
    OPERATION_ALLOCATE,
    OPERATION_BATCH,
    OPERATION_CONDITIONAL,
    OPERATION_KEEP,  /* nothing; what a launch of a graph uses is kept until here */
};

struct user_references;
struct graph_memory;

struct launch {
    CUfunction function;
    CUkernel kernel; /* what the application named, if a kernel */
    unsigned grid[3], block[3], shared;
    unsigned char *parameters; /* owned */
    size_t size;
};

struct operation {
    enum operation_kind kind;
    union {
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        struct launch launch;
        CUDA_HOST_NODE_PARAMS host;
        struct {
            CUstreamCallback function;
            void *data;
            CUstream stream;
        } callback;
        CUevent event;
        CUdeviceptr freed;
        struct {
            CUdeviceptr address;
            uint64_t value;
            unsigned bytes, flags;
        } value;
        CUgraph graph; /* owned */
        struct graph_memory *memory; /* a reference */
        struct {
            CUstreamBatchMemOpParams *list; /* owned */
            unsigned count;
        } batch;
        struct {
            CUgraphConditionalHandle handle;
            CUgraphConditionalNodeType type;
            unsigned size;
            CUgraph *bodies; /* owned */
        } conditional;
        struct user_references *kept; /* owned */
    };
    void *owned; /* a snapshot of a copy's source */
    uint64_t record; /* of an event of several processes, in a stream: which one this makes or waits for */
};

/* Takes what the operation needs: references, or copies of its own. False where memory is out. */
bool operation_duplicate(struct operation *to, const struct operation *from);
/* Gives back what the operation holds. */
void operation_clear(struct operation *operation);
/* The operation, or what is in its graph, is launched or ready to be launched: if a kernel of it may print, its context's buffer
 * for that keeps its size. */
void operation_note_printing(const struct operation *operation);
/* Does it. Called without the driver's lock; an error is one of the context, which sticks. */
CUresult operation_run(struct operation *operation, CUcontext context);

/* --- the parts: checking when asked for, and doing --- */

CUresult copy_check(const CUDA_MEMCPY3D *copy);
CUresult copy_run(const CUDA_MEMCPY3D *copy);
CUresult fill_check(const CUDA_MEMSET_NODE_PARAMS *fill);
CUresult fill_run(const CUDA_MEMSET_NODE_PARAMS *fill);
CUresult launch_run(const struct launch *launch);
/* With the driver's lock, as those below. */
void graph_memory_allocate(struct graph_memory *memory);
/* False: the address is no graph's. */
bool graph_memory_free(CUdeviceptr start);
void graph_memory_hold(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
bool conditional_duplicate(struct operation *to);
void conditional_clear(struct operation *operation);
/* Without the lock. */
CUresult conditional_run(const struct operation *operation, CUcontext context);

#endif
