/* The parameters of functions, as each side remembers them. The driver uses the address of a function again when its
 * module is gone: whoever is told of a function forgets what was known of that handle. */
#include "messages.h"
#include <stdlib.h>

#ifdef AVIARY_GUEST
static CUresult ask_layout(CUfunction function, struct cuda_layout *to) {
    return aviaryFunctionLayout(function, CUDA_PARAMETERS, &to->count, to->offset, to->size);
}
#else
CUresult cuda_function_layout(CUfunction function, unsigned int capacity, unsigned int *count, unsigned short *offsets,
                                unsigned short *sizes) {
    unsigned int found = 0;
    size_t offset = 0, size = 0;
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

static const struct cuda_layout *layout_of(CUfunction function) {
    struct cuda_object *object = metadata(struct cuda_object, function);
    if (!object)
        return NULL;
    struct cuda_layout *layout = __atomic_load_n(&object->layout, __ATOMIC_ACQUIRE);
    if (layout && __atomic_load_n(&layout->known, __ATOMIC_ACQUIRE))
        return layout;
    if (!layout) {
        struct cuda_layout *before = NULL;
        layout = calloc(1, sizeof *layout);
        if (!layout)
            return NULL;
        if (!__atomic_compare_exchange_n(&object->layout, &before, layout, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            free(layout);
            layout = before;
        }
    }
    struct cuda_layout fresh = {0};
    if (ask_layout(function, &fresh) != CUDA_SUCCESS || fresh.count > CUDA_PARAMETERS)
        return NULL;
    for (uint32_t i = 0; i < fresh.count; i++) {
        uint32_t end = (uint32_t)fresh.offset[i] + fresh.size[i];
        fresh.bytes = end > fresh.bytes ? end : fresh.bytes;
    }
    /* Two threads that ask at once write the same. */
    *layout = fresh;
    __atomic_store_n(&layout->known, 1, __ATOMIC_RELEASE);
    return layout;
}

void cuda_new_function(CUfunction function) {
    struct cuda_object *object = function ? metadata(struct cuda_object, function) : NULL;
    if (!object)
        return;
    if (object->layout)
        __atomic_store_n(&object->layout->known, 0, __ATOMIC_RELEASE);
    object->accepted_threads = object->accepted_mark = object->accepted_shared = 0;
}

void cuda_new_functions(const CUfunction *functions, unsigned int count) {
    for (unsigned int i = 0; functions && i < count; i++)
        cuda_new_function(functions[i]);
}
