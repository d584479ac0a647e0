/* Managed memory: one address for the CPU and for the device, and nobody copies.
 *
 * It is page-locked memory that both see. The driver's own would move to where it is used, which takes page faults of
 * this process into the API server's; here it stays in the host's memory, and the device reads and writes it over the
 * bus. What programs compute is the same; a kernel that touches the same memory again and again is slower. So where to
 * keep it may be said, and has no effect. */
#include "guest/ranges.h"

CUresult cuda_managed_alloc(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    if (!pointer || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!cuda_shares_memory())
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t whole = cuda_whole_pages(bytes);
    void *place = NULL;
    if (whole < bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = cuda_shared_alloc(&place, whole, CU_MEMHOSTREGISTER_PORTABLE);
    if (status != CUDA_SUCCESS)
        return status;
    cuda_note_host(place, whole, flags, HOST_MANAGED);
    *pointer = (CUdeviceptr)place;
    return CUDA_SUCCESS;
}

int cuda_is_managed(CUdeviceptr pointer) {
    return cuda_in_managed(pointer, 1);
}

CUresult cuda_managed_free(CUdeviceptr pointer) {
    size_t bytes = 0;
    if (!cuda_take_host((void *)pointer, HOST_MANAGED, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_shared_free((void *)pointer, bytes);
}

CUresult cuda_managed_advise(CUdeviceptr pointer, size_t bytes) {
    return bytes && cuda_in_managed(pointer, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_managed_advise_all(const CUdeviceptr *pointers, const size_t *bytes, size_t count) {
    CUresult status = pointers && bytes && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++)
        status = cuda_managed_advise(pointers[i], bytes[i]);
    return status;
}

/* `bytes` may be 0 for all of it where a stream gets memory for itself. */
CUresult cuda_managed_attach(CUdeviceptr pointer, size_t bytes, unsigned int flags) {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_in_managed(pointer, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
