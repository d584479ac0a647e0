/* The parameters of functions, as each side remembers them. A function's handle ends with its module; but a context
 * that ends takes modules along that nobody unloads, and the driver uses their functions' addresses again: the side that is
 * told of a function forgets what was known of that handle. */
#include "layout.h"
#include <aviary.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef AVIARY_GUEST
static CUresult ask_layout(CUfunction function, struct cuda_layout *to) {
    return aviaryFunctionLayout(function, CUDA_PARAMETERS, &to->count, to->offset, to->size);
}
#else
CUresult cuda_function_layout(CUfunction function, unsigned int capacity, unsigned int *count, unsigned short *offsets,
                                unsigned short *sizes) {
    unsigned int found = 0;
    size_t offset = 0, size = 0;
    if (!count || (capacity && (!offsets || !sizes)))
        return CUDA_ERROR_INVALID_VALUE;
    while (cuFuncGetParamInfo(function, found, &offset, &size) == CUDA_SUCCESS) {
        if (found == capacity || offset > UINT16_MAX || size > UINT16_MAX)
            return CUDA_ERROR_NOT_SUPPORTED;
        offsets[found] = (unsigned short)offset;
        sizes[found] = (unsigned short)size;
        found++;
    }
    *count = found;
    return CUDA_SUCCESS;
}

static CUresult ask_layout(CUfunction function, struct cuda_layout *to) {
    return cuda_function_layout(function, CUDA_PARAMETERS, &to->count, to->offset, to->size);
}
#endif

/* Layouts stay for ever, functions come and go with their modules: those that are alike share one. */
static const struct cuda_layout *shared_layout(const struct cuda_layout *fresh) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct known_layout {
        struct known_layout *next;
        struct cuda_layout layout;
    } *known[256];
    uint32_t hash = fresh->count * 31 + fresh->bytes;
    for (uint32_t i = 0; i < fresh->count; i++)
        hash = hash * 31 + fresh->offset[i];
    struct known_layout **place = &known[hash % 256];
    pthread_mutex_lock(&lock);
    struct known_layout *found = *place;
    while (found && memcmp(&found->layout, fresh, sizeof *fresh) != 0)
        found = found->next;
    if (!found && (found = malloc(sizeof *found))) {
        *found = (struct known_layout){*place, *fresh};
        *place = found;
    }
    pthread_mutex_unlock(&lock);
    return found ? &found->layout : NULL;
}

static const struct cuda_layout *look_up(CUfunction function) {
    struct cuda_code *object = metadata(struct cuda_code, function);
    if (!object)
        return NULL;
    const struct cuda_layout *layout = __atomic_load_n(&object->layout, __ATOMIC_ACQUIRE);
    if (layout)
        return layout;
    struct cuda_layout fresh;
    memset(&fresh, 0, sizeof fresh); /* compared as a whole */
    if (ask_layout(function, &fresh) != CUDA_SUCCESS || fresh.count > CUDA_PARAMETERS)
        return NULL;
    for (uint32_t i = 0; i < fresh.count; i++) {
        uint32_t end = (uint32_t)fresh.offset[i] + fresh.size[i];
        fresh.bytes = end > fresh.bytes ? end : fresh.bytes;
    }
    layout = shared_layout(&fresh);
    __atomic_store_n(&object->layout, layout, __ATOMIC_RELEASE);
    return layout;
}

#ifdef AVIARY_GUEST
const struct cuda_layout *cuda_layout_of(CUfunction function) {
    return look_up(function);
}
#else
static uint64_t forgotten;

/* Finding what is remembered of a function by its address takes a lock. Here the function has been looked up already, by
 * its handle: a thread finds its last ones again, until any layout is forgotten. */
const struct cuda_layout *cuda_layout_of(CUfunction function) {
    static __thread struct {
        CUfunction function;
        uint64_t forgotten;
        const struct cuda_layout *layout;
    } last[32];
    uint64_t now = __atomic_load_n(&forgotten, __ATOMIC_ACQUIRE);
    size_t at = ((uintptr_t)function >> 4) % (sizeof last / sizeof last[0]);
    if (last[at].function == function && last[at].forgotten == now && last[at].layout)
        return last[at].layout;
    const struct cuda_layout *layout = look_up(function);
    last[at].function = function;
    last[at].forgotten = now;
    last[at].layout = layout;
    return layout;
}
#endif

void cuda_new_function(CUfunction function) {
    struct cuda_code *object = function ? metadata(struct cuda_code, function) : NULL;
    if (!object)
        return;
    __atomic_store_n(&object->layout, NULL, __ATOMIC_RELEASE);
#ifndef AVIARY_GUEST
    __atomic_fetch_add(&forgotten, 1, __ATOMIC_ACQ_REL);
#endif
    object->accepted_threads = object->accepted_shared = object->accepted_bytes = 0;
    memset(object->accepted_shapes, 0, sizeof object->accepted_shapes);
}

void cuda_new_functions(const CUfunction *functions, unsigned int count) {
    for (unsigned int i = 0; functions && i < count; i++)
        cuda_new_function(functions[i]);
}
