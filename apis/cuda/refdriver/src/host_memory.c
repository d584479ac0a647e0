/* Pinned host memory: allocated, or the application's own registered. Its device address is its address. */
#include <sys/mman.h>

#include "driver.h"
#include "memory.h"

static CUresult allocate(void **memory, size_t size, unsigned flags)
{
    CUcontext context;
    CUresult result = memory && size ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;
    struct block block = {.size = size, .kind = BLOCK_HOST, .flags = flags | CU_MEMHOSTALLOC_DEVICEMAP, .accessible = true};

    if (result != CUDA_SUCCESS)
        return result;
    if (flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
        return CUDA_ERROR_INVALID_VALUE;
    block.backing = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block.backing == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block.start = (CUdeviceptr)(uintptr_t)block.backing;
    block.context = context;
    block.device = context->device;
    if (!memory_add(&block)) {
        munmap(block.backing, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = block.backing;
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags) { return allocate(memory, size, flags); }
CUresult cuMemAllocHost(void **memory, size_t size) { return allocate(memory, size, 0); }

static struct block *find(const void *memory, enum block_kind kind)
{
    struct block *block = memory_find((CUdeviceptr)(uintptr_t)memory);

    return block && block->backing == memory && block->kind == kind ? block : NULL;
}

CUresult cuMemFreeHost(void *memory)
{
    struct block *block;
    CUresult result;
    size_t size;

    if (!memory)
        return CUDA_SUCCESS;
    block = find(memory, BLOCK_HOST);
    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    result = context_drain(block->context);
    block = find(memory, BLOCK_HOST);
    if (!block)
        return result;
    size = block->size;
    memory_remove(block->start);
    munmap(memory, size);
    return result;
}

CUresult cuMemHostRegister(void *memory, size_t size, unsigned flags)
{
    CUcontext context;
    CUresult result = memory && size ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr start = (CUdeviceptr)(uintptr_t)memory;
    struct block block = {.start = start, .size = size, .backing = memory, .kind = BLOCK_REGISTERED, .flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP, .accessible = true};

    if (result != CUDA_SUCCESS)
        return result;
    if (flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (memory_is_device_range(start) || !memory_is_mapped(memory, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (memory_find(start) || memory_find(start + size - 1))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    block.context = context;
    block.device = context->device;
    return memory_add(&block) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemHostUnregister(void *memory)
{
    struct block *block = find(memory, BLOCK_REGISTERED);
    CUresult result;

    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    if (!block)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    result = context_drain(block->context);
    if (find(memory, BLOCK_REGISTERED))
        memory_remove((CUdeviceptr)(uintptr_t)memory);
    return result;
}

static struct block *find_inside(const void *memory)
{
    struct block *block = memory_find((CUdeviceptr)(uintptr_t)memory);

    return block && (block->kind == BLOCK_HOST || block->kind == BLOCK_REGISTERED) ? block : NULL;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned flags)
{
    if (!address || flags || !find_inside(memory))
        return CUDA_ERROR_INVALID_VALUE;
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *memory)
{
    struct block *block = find_inside(memory);

    if (!flags || !block || block->kind != BLOCK_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = block->flags;
    return CUDA_SUCCESS;
}
