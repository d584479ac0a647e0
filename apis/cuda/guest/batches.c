/* Several copies in one call, and forms of copies that are boxes by another name. Copies of a batch may run in any order: here
 * they run one after the other. */
#include "guest/graphs.h"
#include <string.h>

/* When the application's memory may be read: with CU_MEMCPY_SRC_ACCESS_ORDER_STREAM not before the stream gets there. */
static CUresult prepare_source(CUmemcpySrcAccessOrder order, CUdeviceptr from, size_t bytes, CUstream stream) {
    if (order != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || cuda_is_device_address(from) || cuda_shared((const void *)from, bytes)
        || cuda_in_arena((const void *)from, bytes) || cuda_captures_host(stream))
        return CUDA_SUCCESS;
    return cuStreamSynchronize(stream);
}

static int is_order(CUmemcpySrcAccessOrder order) {
    return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
           || order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

static int are_valid(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count,
                     const CUmemcpyAttributes *attributes, const size_t *first, size_t attribute_count, CUstream stream) {
    if (!to || !from || !bytes || !count || !attributes || !first || !attribute_count || attribute_count > count || first[0]
        || !stream || stream == CU_STREAM_LEGACY)
        return 0;
    for (size_t i = 0; i < attribute_count; i++)
        if (!is_order(attributes[i].srcAccessOrder) || first[i] >= count || (i && first[i] <= first[i - 1]))
            return 0;
    return 1;
}

/* `failed` gets the copy that was refused, or SIZE_MAX; NULL: nobody asks. */
CUresult cuda_copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count,
                         const CUmemcpyAttributes *attributes, const size_t *first, size_t attribute_count, size_t *failed,
                         CUstream stream) {
    CUresult status = CUDA_SUCCESS;
    size_t attribute = 0, done = 0;
    if (failed)
        *failed = SIZE_MAX;
    if (cuda_lacks_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!are_valid(to, from, bytes, count, attributes, first, attribute_count, stream))
        return CUDA_ERROR_INVALID_VALUE;
    for (; done < count; done++) {
        if (attribute + 1 < attribute_count && first[attribute + 1] == done)
            attribute++;
        status = prepare_source(attributes[attribute].srcAccessOrder, from[done], bytes[done], stream);
        if (status == CUDA_SUCCESS)
            status = cuMemcpyAsync(to[done], from[done], bytes[done], stream);
        if (status != CUDA_SUCCESS)
            break;
    }
    if (failed && status != CUDA_SUCCESS)
        *failed = done;
    return status;
}

/* ---- Boxes ---------------------------------------------------------------------------------- */

/* Bytes of an array's element; 0: it cannot be told. */
static size_t element_bytes(CUarray array) {
    CUDA_ARRAY3D_DESCRIPTOR description;
    size_t channel;
    if (cuArray3DGetDescriptor_v2(&description, array) != CUDA_SUCCESS)
        return 0;
    switch (description.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: channel = 1; break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: channel = 2; break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: channel = 4; break;
    default: return 0;
    }
    return channel * description.NumChannels;
}

/* An extent counts elements where an array takes part, and bytes otherwise. */
static CUresult copy_operation(const CUDA_MEMCPY3D_BATCH_OP *operation, CUstream stream) {
    CUDA_MEMCPY3D copy = {.Height = operation->extent.height, .Depth = operation->extent.depth};
    size_t element = 1;
    int from_array = operation->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY, to_array = operation->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
    if ((!from_array && operation->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        || (!to_array && operation->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER) || !is_order(operation->srcAccessOrder)
        || !operation->extent.width || !operation->extent.height || !operation->extent.depth)
        return CUDA_ERROR_INVALID_VALUE;
    if (from_array || to_array)
        element = element_bytes(from_array ? operation->src.op.array.array : operation->dst.op.array.array);
    if (!element)
        return CUDA_ERROR_INVALID_VALUE;
    copy.WidthInBytes = operation->extent.width * element;
    if (from_array) {
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.srcArray = operation->src.op.array.array;
        copy.srcXInBytes = operation->src.op.array.offset.x * element;
        copy.srcY = operation->src.op.array.offset.y;
        copy.srcZ = operation->src.op.array.offset.z;
    } else {
        copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        copy.srcDevice = operation->src.op.ptr.ptr;
        copy.srcPitch = operation->src.op.ptr.rowLength * element;
        copy.srcHeight = operation->src.op.ptr.layerHeight;
    }
    if (to_array) {
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.dstArray = operation->dst.op.array.array;
        copy.dstXInBytes = operation->dst.op.array.offset.x * element;
        copy.dstY = operation->dst.op.array.offset.y;
        copy.dstZ = operation->dst.op.array.offset.z;
    } else {
        copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        copy.dstDevice = operation->dst.op.ptr.ptr;
        copy.dstPitch = operation->dst.op.ptr.rowLength * element;
        copy.dstHeight = operation->dst.op.ptr.layerHeight;
    }
    CUresult status = from_array ? CUDA_SUCCESS : prepare_source(operation->srcAccessOrder, copy.srcDevice, 1, stream);
    return status == CUDA_SUCCESS ? cuda_copy_3d(&copy, stream) : status;
}

CUresult cuda_copy_batch_3d(size_t count, const CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
                            CUstream stream) {
    if (failed)
        *failed = SIZE_MAX;
    if (cuda_lacks_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!count || !list || flags || !stream || stream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult status = copy_operation(&list[i], stream);
        if (status != CUDA_SUCCESS) {
            if (failed)
                *failed = i;
            return status;
        }
    }
    return CUDA_SUCCESS;
}

/* Between contexts: addresses say by themselves where they are. */
CUresult cuda_copy_3d_peer(const CUDA_MEMCPY3D_PEER *peer, CUstream stream) {
    if (!peer)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D copy = {
        .srcXInBytes = peer->srcXInBytes, .srcY = peer->srcY, .srcZ = peer->srcZ, .srcLOD = peer->srcLOD,
        .srcMemoryType = peer->srcMemoryType, .srcHost = peer->srcHost, .srcDevice = peer->srcDevice, .srcArray = peer->srcArray,
        .srcPitch = peer->srcPitch, .srcHeight = peer->srcHeight,
        .dstXInBytes = peer->dstXInBytes, .dstY = peer->dstY, .dstZ = peer->dstZ, .dstLOD = peer->dstLOD,
        .dstMemoryType = peer->dstMemoryType, .dstHost = peer->dstHost, .dstDevice = peer->dstDevice, .dstArray = peer->dstArray,
        .dstPitch = peer->dstPitch, .dstHeight = peer->dstHeight,
        .WidthInBytes = peer->WidthInBytes, .Height = peer->Height, .Depth = peer->Depth,
    };
    return cuda_copy_3d(&copy, stream);
}

/* A line of bytes from or to an array, `offset` bytes from its start. */
struct line_end {
    CUarray array;
    size_t offset;
    CUmemorytype type;
    CUdeviceptr pointer;
};

static CUresult copy_line(struct line_end to, struct line_end from, size_t bytes, CUstream stream, int wait) {
    CUDA_MEMCPY2D copy = {.srcMemoryType = from.type, .srcArray = from.array, .srcXInBytes = from.offset,
                          .srcHost = (const void *)(uintptr_t)from.pointer, .srcDevice = from.pointer,
                          .dstMemoryType = to.type, .dstArray = to.array, .dstXInBytes = to.offset,
                          .dstHost = (void *)(uintptr_t)to.pointer, .dstDevice = to.pointer, .WidthInBytes = bytes, .Height = 1};
    CUresult status = cuda_copy_2d(&copy, stream);
    return status == CUDA_SUCCESS && wait ? cuStreamSynchronize(stream) : status;
}

CUresult cuda_copy_to_array(CUarray to, size_t offset, CUmemorytype type, CUdeviceptr from, size_t bytes, CUstream stream,
                            int wait) {
    return copy_line((struct line_end){to, offset, CU_MEMORYTYPE_ARRAY, 0}, (struct line_end){NULL, 0, type, from}, bytes,
                     stream, wait);
}

CUresult cuda_copy_from_array(CUmemorytype type, CUdeviceptr to, CUarray from, size_t offset, size_t bytes, CUstream stream,
                              int wait) {
    return copy_line((struct line_end){NULL, 0, type, to}, (struct line_end){from, offset, CU_MEMORYTYPE_ARRAY, 0}, bytes,
                     stream, wait);
}

CUresult cuda_copy_array(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
    return copy_line((struct line_end){to, to_offset, CU_MEMORYTYPE_ARRAY, 0},
                     (struct line_end){from, from_offset, CU_MEMORYTYPE_ARRAY, 0}, bytes, NULL, 1);
}

/* ---- Pools by what they are for -------------------------------------------------------------- */

static int is_devices(const CUmemLocation *location, CUmemAllocationType type) {
    return location && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

CUresult cuda_pool_of(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type, int current) {
    if (!pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_devices(location, type))
        return CUDA_ERROR_NOT_SUPPORTED;
    return current ? cuDeviceGetMemPool(pool, location->id) : cuDeviceGetDefaultMemPool(pool, location->id);
}

CUresult cuda_set_pool_of(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    if (!location)
        return CUDA_ERROR_INVALID_VALUE;
    return is_devices(location, type) ? cuDeviceSetMemPool(location->id, pool) : CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- Managed memory -------------------------------------------------------------------------- */

/* Nothing was said of where it is to lie that has an effect: all attributes have their first values. */
CUresult cuda_range_attribute(void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr pointer, size_t bytes) {
    if (!data || !bytes || !cuda_in_managed(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        if (size != 4)
            return CUDA_ERROR_INVALID_VALUE;
        memset(data, 0, 4);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        if (size != 4)
            return CUDA_ERROR_INVALID_VALUE;
        *(int *)data = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
                               || attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE
                           ? CU_MEM_LOCATION_TYPE_INVALID
                           : CU_DEVICE_INVALID;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        if (!size || size % 4)
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < size / 4; i++)
            ((int *)data)[i] = CU_DEVICE_INVALID;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuda_range_attributes(void **data, const size_t *sizes, const CUmem_range_attribute *attributes, size_t count,
                               CUdeviceptr pointer, size_t bytes) {
    CUresult status = data && sizes && attributes && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++)
        status = cuda_range_attribute(data[i], sizes[i], attributes[i], pointer, bytes);
    return status;
}
