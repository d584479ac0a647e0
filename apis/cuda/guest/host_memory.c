/* Page-locked memory lies in the arena, which the API server maps at the same address and registers with the driver:
 * the device reads and writes what the application sees, and nothing is copied. Where both sides share no memory (a
 * node of another machine) it is ordinary memory that counts as page-locked: copies carry it, the device cannot look
 * into it, unless it is asked for and little (mirrored_memory.c). */
#include "guest/ranges.h"
#include <stdlib.h>

enum { PAGE = 4096 };

/* True if both sides see the same memory; asked once, a process has one server. */
int cuda_shares_memory(void) {
    static int known;
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!answer) {
        void *probe = aviary_zerocopy_alloc_uninitialized(PAGE);
        answer = probe && aviary_is_zerocopy(probe) ? 1 : -1;
        aviary_zerocopy_free(probe);
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer > 0;
}

/* Memory that both sides see and the device uses in place; `register_flags` as cuMemHostRegister takes them. */
CUresult cuda_shared_alloc(void **memory, size_t bytes, unsigned int register_flags) {
    void *place = aviary_zerocopy_alloc_uninitialized(bytes);
    if (!place)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = aviaryHostRegister(place, bytes, register_flags);
    if (status == CUDA_SUCCESS)
        *memory = place;
    else
        aviary_zerocopy_free(place);
    return status;
}

CUresult cuda_shared_free(void *memory, size_t bytes) {
    /* The driver waits for what uses it. */
    CUresult status = aviaryHostUnregister(memory, bytes);
    aviary_zerocopy_free(memory);
    return status;
}

/* Whole pages, of which nothing else has a part. */
size_t cuda_whole_pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

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

/* The application's own memory: nothing else can be done for it than to remember it. Copies from and to it pass through
 * shared memory, as those of any other memory do; the device cannot look into it. */
CUresult cuda_host_register(void *memory, size_t bytes, unsigned int flags) {
    const unsigned int known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY
                               | CU_MEMHOSTREGISTER_READ_ONLY;
    if (!memory || !bytes || (flags & ~known) || (uintptr_t)memory + bytes < (uintptr_t)memory)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuda_claim_host(memory, bytes, flags);
}

CUresult cuda_host_unregister(void *memory) {
    size_t bytes = 0;
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_take_host(memory, HOST_REGISTERED, &bytes) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
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

