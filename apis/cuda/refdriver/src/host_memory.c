/* Host memory that the device uses: pinned, the application's own registered, managed. Its device address is its address. */
#include <sys/mman.h>

#include "driver.h"
#include "memory.h"

static CUresult enter_in(CUcontext context, void **memory, size_t size, unsigned flags, enum block_kind kind)
{
    struct block block = {.size = size, .kind = kind, .flags = flags, .accessible = true};

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

static CUresult enter(void **memory, size_t size, unsigned flags, enum block_kind kind)
{
    CUcontext context;
    CUresult result = memory && size ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    return result == CUDA_SUCCESS ? enter_in(context, memory, size, flags, kind) : result;
}

static CUresult allocate(void **memory, size_t size, unsigned flags)
{
    if (flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
        return CUDA_ERROR_INVALID_VALUE;
    return enter(memory, size, flags | CU_MEMHOSTALLOC_DEVICEMAP, BLOCK_HOST);
}

CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags) { return allocate(memory, size, flags); }
CUresult cuMemAllocHost(void **memory, size_t size) { return allocate(memory, size, 0); }

static struct block *find(const void *memory, enum block_kind kind)
{
    struct block *block = memory_find((CUdeviceptr)(uintptr_t)memory);

    return block && block->backing == memory && block->kind == kind ? block : NULL;
}

static CUresult leave(void *memory, enum block_kind kind)
{
    struct block *block = find(memory, kind);
    CUresult result;
    size_t size;

    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    result = context_drain(block->context);
    block = find(memory, kind);
    if (!block)
        return result;
    size = block->size;
    memory_remove(block->start);
    munmap(memory, size);
    return result;
}

CUresult cuMemFreeHost(void *memory) { return memory ? leave(memory, BLOCK_HOST) : CUDA_SUCCESS; }

/* --- managed memory: it does not move, so where to keep it has no effect --- */

CUresult managed_free(CUdeviceptr start) { return leave((void *)(uintptr_t)start, BLOCK_MANAGED); }

CUresult managed_allocate(CUdeviceptr *address, size_t size, CUcontext context)
{
    void *memory;
    CUresult result = enter_in(context, &memory, size, CU_MEM_ATTACH_GLOBAL, BLOCK_MANAGED);

    if (result == CUDA_SUCCESS)
        *address = (CUdeviceptr)(uintptr_t)memory;
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    void *memory;
    CUresult result;

    if (!address || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    result = enter(&memory, size, flags, BLOCK_MANAGED);
    if (result == CUDA_SUCCESS)
        *address = (CUdeviceptr)(uintptr_t)memory;
    return result;
}

static bool in_managed(CUdeviceptr address, size_t size)
{
    struct block *block = memory_find(address);

    return block && block->kind == BLOCK_MANAGED && size <= block->start + block->size - address;
}

static CUresult advised(CUdeviceptr address, size_t size)
{
    return size && in_managed(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags, CUstream stream)
{
    (void)location, (void)flags, (void)stream;
    return advised(address, size);
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation location)
{
    (void)advice, (void)location;
    return advised(address, size);
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t size, unsigned flags)
{
    (void)stream;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    return in_managed(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    const struct block *there = memory_find(start) ? memory_find(start) : memory_find(start + size - 1);
    if (there)
        return there->kind == BLOCK_REGISTERED ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
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

    if (!flags || !block || (block->kind != BLOCK_HOST && block->kind != BLOCK_REGISTERED))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = block->flags;
    return CUDA_SUCCESS;
}
