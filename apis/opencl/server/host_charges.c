/* Memory of the host that the runtime takes for programs and that kernels share with the application. */
#include "server.h"
#include <string.h>

/* A built program of some lines takes 1 MiB of PoCL 3.1: its modules, and code. */
#define PROGRAM_BYTES ((size_t)1 << 20)
/* The runtime's copy, and that of a compiler or of the slicing of launches. */
#define TEXT_COPIES 2

static size_t plus(size_t a, size_t b) {
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static size_t program_of(size_t text) {
    return plus(PROGRAM_BYTES, text > SIZE_MAX / TEXT_COPIES ? SIZE_MAX : text * TEXT_COPIES);
}

size_t opencl_text_bytes(size_t length) {
    return program_of(length);
}

size_t opencl_source_bytes(cl_uint count, const char *const *strings, const size_t *lengths) {
    size_t bytes = 0;
    for (cl_uint i = 0; strings && i < count; i++)
        if (strings[i])
            bytes = plus(bytes, lengths && lengths[i] ? lengths[i] : strlen(strings[i]));
    return program_of(bytes);
}

size_t opencl_binary_bytes(cl_uint count, const size_t *lengths) {
    size_t bytes = 0;
    for (cl_uint i = 0; lengths && i < count; i++)
        bytes = plus(bytes, lengths[i]);
    return program_of(bytes);
}

/* ---- Shared virtual memory: the guest has allocated it, here it is charged --------------------------- */

static void *svm_allocated(cl_context context, cl_svm_mem_flags flags, size_t size, cl_uint alignment, void *place) {
    (void)context;
    (void)flags;
    (void)size;
    (void)alignment;
    return place;
}

void *opencl_svm_alloc_function(void) {
    return (void *)svm_allocated;
}

static void svm_freed(cl_context context, void *pointer) {
    (void)context;
    (void)pointer;
}

void *opencl_svm_free_function(void) {
    return (void *)svm_freed;
}
