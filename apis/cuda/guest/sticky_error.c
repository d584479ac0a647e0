/* Errors that stay with a context until it ends: a kernel that touched a wild address, for example. The driver reports
 * them from every later call. What the guest answers by itself, or sends without waiting, would not: from the first
 * such error on, calls of threads with that context wait for the driver's own answer. */
#include "guest/context.h"

/* Before the first such error nothing else is looked at. */
static int any_sticky_error;

static int stays(CUresult result) {
    switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED: return 1;
    default: return 0;
    }
}

void cuda_note_result(CUresult result) {
    if (!stays(result))
        return;
    /* The call may have been about another context than the current one: then this one only loses some speed. */
    struct cuda_context *object = cuda_context_of(cuda_current_context());
    if (!object)
        return;
    __atomic_store_n(&object->sticky_error, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&any_sticky_error, 1, __ATOMIC_RELEASE);
}

int cuda_no_sticky_error(void) {
    if (!__atomic_load_n(&any_sticky_error, __ATOMIC_ACQUIRE))
        return 1;
    const struct cuda_context *object = cuda_context_of(cuda_current_context());
    return !object || !__atomic_load_n(&object->sticky_error, __ATOMIC_ACQUIRE);
}

/* The server places memory without asking the driver: the error, if it is this context's, comes from another call. */
CUresult cuda_alloc_with_sticky_error(CUdeviceptr *pointer, size_t bytes) {
    CUresult status = cuCtxSynchronize();
    struct cuda_context *object = cuda_context_of(cuda_current_context());
    if (status != CUDA_SUCCESS || !object)
        return status;
    __atomic_store_n(&object->sticky_error, 0, __ATOMIC_RELEASE);
    return cuMemAlloc_v2(pointer, bytes);
}
