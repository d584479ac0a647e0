/* Page-locked memory lies in the arena, which the API server maps at the same address and registers with the driver:
 * the device reads and writes what the application sees, and nothing is copied. Where both sides share no memory (a
 * node of another machine) it is ordinary memory that counts as page-locked: copies carry it, the device cannot look
 * into it, unless it is asked for and little (mirrored_memory.c). */
#include "guest/ranges.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

CUresult cuda_host_alloc(void **memory, size_t bytes, unsigned int flags) {
    if (!memory || (flags & ~(unsigned int)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)))
        return CUDA_ERROR_INVALID_VALUE;
    *memory = NULL;
    if (!cuda_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    size_t whole = cuda_whole_pages(bytes);
    void *place = NULL;
    CUresult status = CUDA_SUCCESS;
    if (whole < bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Memory that the driver allocates is valid in every context, where addresses are unified. */
    if (cuda_shares_memory())
        status = cuda_shared_alloc(&place, whole, CU_MEMHOSTREGISTER_PORTABLE);
    /* Kernels that look into any other (NCCL's do) would end with an illegal address. */
    else if (flags & CU_MEMHOSTALLOC_DEVICEMAP)
        status = cuda_mapped_alloc(&place, whole);
    else if (!(place = aligned_alloc(PAGE, whole)))
        status = CUDA_ERROR_OUT_OF_MEMORY;
    if (status != CUDA_SUCCESS)
        return status;
    cuda_note_host(place, whole, flags, HOST_ALLOCATED);
    *memory = place;
    return CUDA_SUCCESS;
}

/* Whether all of it is mapped: here msync does nothing but to look. */
static int is_there(const void *memory, size_t bytes) {
    uintptr_t first = (uintptr_t)memory & -(uintptr_t)PAGE;
    return msync((void *)first, (uintptr_t)memory + bytes - first, MS_ASYNC) == 0;
}

CUresult cuda_host_unregister(void *memory) {
    size_t bytes = 0;
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuda_is_in_place(memory, 1) ? cuda_unregister_in_place(memory) : CUDA_SUCCESS;
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
        return status;
    return cuda_take_host(memory, HOST_REGISTERED, &bytes) ? status : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

/* What had been registered in a context that has ended is registered no longer. */
static void end_stale(const void *memory, size_t bytes) {
    void *stale;
    while ((stale = cuda_stale_registration(memory, bytes)) && cuda_host_unregister(stale) != CUDA_ERROR_INVALID_VALUE
           && cuda_stale_registration(memory, bytes) != stale)
        ;
}

/* The application's own memory: the device uses it in place where its pages can become shared ones (registered_memory.c). Otherwise it
 * is only remembered: copies from and to it pass through shared memory, as those of any other memory do. */
CUresult cuda_host_register(void *memory, size_t bytes, unsigned int flags) {
    const unsigned int known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY
                               | CU_MEMHOSTREGISTER_READ_ONLY;
    if (!memory || !bytes || (flags & ~known) || (uintptr_t)memory + bytes < (uintptr_t)memory)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (cuda_is_device_address((CUdeviceptr)memory) || !is_there(memory, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuda_claim_host(memory, bytes, flags);
    if (status == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
        end_stale(memory, bytes);
        status = cuda_claim_host(memory, bytes, flags);
    }
    if (status != CUDA_SUCCESS)
        return status;
    status = cuda_register_in_place(memory, bytes, flags);
    if (status != CUDA_SUCCESS)
        cuda_take_host(memory, HOST_REGISTERED, &bytes);
    return status;
}

CUresult cuda_host_free(void *memory) {
    size_t bytes = 0;
    if (!memory)
        return CUDA_SUCCESS;
    if (!cuda_take_host(memory, HOST_ALLOCATED, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (cuda_is_mapped(memory))
        return cuda_mapped_free(memory);
    if (!aviary_is_zerocopy(memory)) {
        free(memory);
        return CUDA_SUCCESS;
    }
    return cuda_shared_free(memory, bytes);
}

