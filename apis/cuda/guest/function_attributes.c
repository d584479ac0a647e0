/* Attributes of kernels: the runtime asks for one after the other, so the answer to one holds all, and they are
 * remembered as long as nobody sets any (function_state.c). */
#include "guest/functions.h"

/* The state for which answers hold; never 0. */
static uint64_t attributes_version(CUkernel kernel, CUdevice device) {
    return cuda_mixed(cuda_function_state(kernel) + (uint64_t)device) | 1;
}

static int known_attribute(const struct cuda_code *object, uint64_t version, unsigned int which, int *value) {
    if (__atomic_load_n(&object->attributes_version, __ATOMIC_ACQUIRE) != version
        || !(__atomic_load_n(&object->attributes, __ATOMIC_RELAXED) >> which & 1))
        return 0;
    *value = __atomic_load_n(&object->attribute[which], __ATOMIC_RELAXED);
    /* Somebody may have begun to write others meanwhile. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&object->attributes_version, __ATOMIC_RELAXED) == version;
}

/* One writer at a time; who comes second has its answer and leaves it at that. */
static void keep_attributes(struct cuda_code *object, uint64_t version, const int *values, uint32_t known) {
    if (__atomic_exchange_n(&object->attributes_writer, 1, __ATOMIC_ACQUIRE))
        return;
    __atomic_store_n(&object->attributes_version, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (unsigned int i = 0; i < CUDA_SETTINGS; i++)
        __atomic_store_n(&object->attribute[i], values[i], __ATOMIC_RELAXED);
    __atomic_store_n(&object->attributes, known, __ATOMIC_RELAXED);
    __atomic_store_n(&object->attributes_version, version, __ATOMIC_RELEASE);
    __atomic_store_n(&object->attributes_writer, 0, __ATOMIC_RELEASE);
}

CUresult cuda_kernel_attribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
    struct cuda_code *object = cuda_code_of(kernel);
    int values[CUDA_SETTINGS] = {0};
    unsigned int known = 0;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    /* As it is before it is asked: a setting that comes in between makes it something else. */
    uint64_t version = attributes_version(kernel, device);
    if (object && (unsigned int)attribute < CUDA_SETTINGS && known_attribute(object, version, attribute, value))
        return CUDA_SUCCESS;
    CUresult status = aviaryKernelAttributes(kernel, device, attribute, value, CUDA_SETTINGS, values, &known);
    if (status == CUDA_SUCCESS && object)
        keep_attributes(object, version, values, known);
    return status;
}
