/* The guest's records of objects. Used by all layers of the guest. */
#ifndef AVIARY_CUDA_OBJECTS_H
#define AVIARY_CUDA_OBJECTS_H
#include "cuda_types.h"
#include "layout.h"
#include <aviary/guest.h>
#include <stddef.h>
#include <stdint.h>

/* The guest's records of objects; NULL: it has none, as the handle is dead, or of another type. */
static inline struct cuda_context *cuda_context_of(CUcontext context) {
    return context ? metadata(struct cuda_context, context) : NULL;
}
/* A kernel may stand for its function, and the other way round. */
static inline struct cuda_code *cuda_code_of(const void *code) {
    return code ? metadata(struct cuda_code, code) : NULL;
}
static inline struct cuda_event *cuda_event_of(CUevent event) {
    return event ? metadata(struct cuda_event, event) : NULL;
}
static inline struct cuda_node *cuda_node_of(CUgraphNode node) {
    return node ? metadata(struct cuda_node, node) : NULL;
}
static inline struct cuda_linker *cuda_linker_of(CUlinkState state) {
    return state ? metadata(struct cuda_linker, state) : NULL;
}

#endif
