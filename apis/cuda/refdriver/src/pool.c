/* Allocation in a stream's order. A pool here only counts: memory is there at once, and goes back when the
 * stream gets to its freeing. */
#include "driver.h"
#include "graph.h"
#include "memory.h"
#include "stream.h"

struct CUmemPoolHandle_st {
    struct object object;
    CUdevice device;
    cuuint64_t used, used_high, threshold;
    int reuse[3];
};

CUmemoryPool pool_create(CUdevice device)
{
    CUmemoryPool pool = object_new(KIND_POOL, sizeof(*pool), NULL);

    if (pool) {
        pool->device = device;
        pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    }
    return pool;
}

void pool_count(CUmemoryPool pool, long long change)
{
    pool->used += (cuuint64_t)change;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    if (change > 0)
        object_hold(pool);
    else
        object_drop(pool);
}

static CUresult allocate(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream handle)
{
    enum { ALIGNMENT = 512 };
    CUstream stream;
    CUresult result = address && size ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture) {
        struct operation operation;
        result = operation_from_allocation(&operation, pool ? pool->device : stream->context->device, size, stream->context);
        if (result == CUDA_SUCCESS)
            *address = graph_memory_start(operation.memory);
        return result == CUDA_SUCCESS ? stream_submit(stream, &operation) : result;
    }
    if (!pool)
        pool = devices[stream->context->device].pool;
    result = memory_allocate(address, size, ALIGNMENT, stream->context, pool->device, pool);
    if (result == CUDA_SUCCESS)
        pool_count(pool, (long long)size);
    return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) { return allocate(address, size, NULL, stream); }

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    return object_check(pool, KIND_POOL) ? allocate(address, size, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    struct operation operation = {.kind = OPERATION_FREE, .freed = address};
    struct block *block;
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    block = memory_find(address);
    if (!block || block->start != address || block->kind > BLOCK_POOL)
        return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(stream, &operation);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    if (!pool || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || properties->handleTypes ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!device_valid(properties->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = pool_create(properties->location.id);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    if (!object_check(pool, KIND_POOL))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < device_count; i++) {
        if (devices[i].default_pool == pool)
            return CUDA_ERROR_INVALID_VALUE;
        if (devices[i].pool == pool)
            devices[i].pool = devices[i].default_pool;
    }
    object_end(pool);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    (void)keep;
    return object_check(pool, KIND_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    if (!object_check(pool, KIND_POOL) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE;
        pool->used_high = pool->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    if (!object_check(pool, KIND_POOL) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    return object_check(pool, KIND_POOL) && (access || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = devices[device].default_pool;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = devices[device].pool;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!object_check(pool, KIND_POOL) || pool->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    devices[device].pool = pool;
    return CUDA_SUCCESS;
}

static bool is_of_device(const CUmemLocation *location, CUmemAllocationType type)
{
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    if (!pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    return is_of_device(location, type) ? cuDeviceGetDefaultMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    if (!pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    return is_of_device(location, type) ? cuDeviceGetMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    if (!location)
        return CUDA_ERROR_INVALID_VALUE;
    return is_of_device(location, type) ? cuDeviceSetMemPool(location->id, pool) : CUDA_ERROR_NOT_SUPPORTED;
}
