/* All forms of copies are boxes of bytes with pitches, as CUDA_MEMCPY3D has them. */
#include "operation.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "memory.h"
#include "stream.h"

/* One end of a copy. */
struct end {
    char *bytes;
    size_t pitch, slice;
    bool pageable;
};

static const size_t limit = (size_t)1 << 40;

static CUresult find_end(struct end *end, CUmemorytype type, const void *host, CUdeviceptr device, size_t pitch,
                         size_t lines, size_t x, size_t y, size_t z, const CUDA_MEMCPY3D *copy)
{
    size_t offset, size;
    CUdeviceptr address = type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)host : device;

    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return type == CU_MEMORYTYPE_ARRAY ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (!pitch)
        pitch = copy->WidthInBytes + x;
    if (!lines)
        lines = copy->Height + y;
    if (pitch > limit || lines > limit || x > limit || y > limit || z > limit || pitch < copy->WidthInBytes + x ||
        (copy->Depth > 1 && lines < copy->Height + y) || (pitch && lines > limit / pitch))
        return CUDA_ERROR_INVALID_VALUE;
    end->pitch = pitch;
    end->slice = pitch * lines;
    if (end->slice && (z > limit / end->slice || copy->Depth > limit / end->slice))
        return CUDA_ERROR_INVALID_VALUE;
    offset = z * end->slice + y * pitch + x;
    size = (copy->Depth - 1) * end->slice + (copy->Height - 1) * pitch + copy->WidthInBytes;
    end->bytes = memory_at(address + offset, size);
    end->pageable = !end->bytes;
    if (end->bytes)
        return CUDA_SUCCESS;
    if (!address || type == CU_MEMORYTYPE_DEVICE || memory_is_device_range(address) || memory_is_known(address + offset))
        return CUDA_ERROR_INVALID_VALUE;
    end->bytes = (char *)(uintptr_t)(address + offset);
    return memory_is_mapped(end->bytes, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult find_ends(struct end *source, struct end *destination, const CUDA_MEMCPY3D *copy)
{
    CUresult result;

    if (copy->WidthInBytes > limit || copy->Height > limit || copy->Depth > limit)
        return CUDA_ERROR_INVALID_VALUE;
    result = find_end(source, copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch, copy->srcHeight,
                      copy->srcXInBytes, copy->srcY, copy->srcZ, copy);
    if (result == CUDA_SUCCESS)
        result = find_end(destination, copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch,
                          copy->dstHeight, copy->dstXInBytes, copy->dstY, copy->dstZ, copy);
    return result;
}

static bool nothing(const CUDA_MEMCPY3D *copy) { return !copy->WidthInBytes || !copy->Height || !copy->Depth; }

CUresult copy_check(const CUDA_MEMCPY3D *copy)
{
    struct end source, destination;

    return nothing(copy) ? CUDA_SUCCESS : find_ends(&source, &destination, copy);
}

CUresult copy_run(const CUDA_MEMCPY3D *copy)
{
    struct end source, destination;

    if (nothing(copy))
        return CUDA_SUCCESS;
    if (find_ends(&source, &destination, copy) != CUDA_SUCCESS)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (size_t z = 0; z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height; y++)
            memmove(destination.bytes + z * destination.slice + y * destination.pitch,
                    source.bytes + z * source.slice + y * source.pitch, copy->WidthInBytes);
    return CUDA_SUCCESS;
}

/* As a real driver: a pageable source may change as soon as the call returned, so a small one is copied and a
 * large one waited for; a pageable destination has its data when the call returns. */
static CUresult submit(const CUDA_MEMCPY3D *copy, CUstream handle, bool blocking)
{
    enum { SNAPSHOT = 65536 };
    struct operation operation = {.kind = OPERATION_COPY, .copy = *copy};
    struct end source, destination;
    bool wait = blocking;
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (nothing(copy))
        return CUDA_SUCCESS;
    result = find_ends(&source, &destination, copy);
    if (result == CUDA_SUCCESS && wait)
        result = capture_forbids(stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!stream->capture && !wait) {
        bool line = copy->Height == 1 && copy->Depth == 1 && copy->WidthInBytes <= SNAPSHOT;
        wait = destination.pageable || (source.pageable && !line);
        if (source.pageable && !wait) {
            operation.owned = malloc(copy->WidthInBytes);
            if (!operation.owned)
                return CUDA_ERROR_OUT_OF_MEMORY;
            memcpy(operation.owned, source.bytes, copy->WidthInBytes);
            operation.copy.srcMemoryType = CU_MEMORYTYPE_HOST;
            operation.copy.srcHost = operation.owned;
            operation.copy.srcXInBytes = operation.copy.srcY = operation.copy.srcZ = 0;
        }
    }
    result = stream_submit(stream, &operation);
    if (result == CUDA_SUCCESS && wait && !stream->capture) {
        CUcontext context = stream->context;
        object_hold(context);
        stream_wait(stream);
        if (blocking)
            print_flush(context);
        result = context->error;
        object_drop(context);
    }
    return result;
}

/* --- lines --- */

static CUDA_MEMCPY3D line(CUmemorytype to, CUdeviceptr destination, CUmemorytype from, CUdeviceptr source, size_t size)
{
    return (CUDA_MEMCPY3D){
        .srcMemoryType = from,
        .srcHost = (const void *)(uintptr_t)source,
        .srcDevice = source,
        .dstMemoryType = to,
        .dstHost = (void *)(uintptr_t)destination,
        .dstDevice = destination,
        .WidthInBytes = size,
        .Height = 1,
        .Depth = 1,
    };
}

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define UNIFIED CU_MEMORYTYPE_UNIFIED

static CUresult copy_line(CUmemorytype to, CUdeviceptr destination, CUmemorytype from, CUdeviceptr source, size_t size,
                          CUstream stream, bool wait)
{
    CUDA_MEMCPY3D copy = line(to, destination, from, source, size);

    return submit(&copy, stream, wait);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_line(UNIFIED, to, UNIFIED, from, size, NULL, true);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy_line(UNIFIED, to, UNIFIED, from, size, stream, false);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size)
{
    return copy_line(DEVICE, to, HOST, (CUdeviceptr)(uintptr_t)from, size, NULL, true);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return copy_line(DEVICE, to, HOST, (CUdeviceptr)(uintptr_t)from, size, stream, false);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size)
{
    return copy_line(HOST, (CUdeviceptr)(uintptr_t)to, DEVICE, from, size, NULL, true);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy_line(HOST, (CUdeviceptr)(uintptr_t)to, DEVICE, from, size, stream, false);
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_line(DEVICE, to, DEVICE, from, size, NULL, true);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy_line(DEVICE, to, DEVICE, from, size, stream, false);
}

/* Addresses say by themselves which device they belong to; the contexts must only be there. */
static CUresult peers(CUcontext destination, CUcontext source)
{
    return object_check(destination, KIND_CONTEXT) && object_check(source, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
    CUresult result = peers(to_context, from_context);

    return result == CUDA_SUCCESS ? cuMemcpyDtoD(to, from, size) : result;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                           CUstream stream)
{
    CUresult result = peers(to_context, from_context);

    return result == CUDA_SUCCESS ? cuMemcpyDtoDAsync(to, from, size, stream) : result;
}

/* --- boxes --- */

static CUDA_MEMCPY3D box(const CUDA_MEMCPY2D *copy)
{
    return (CUDA_MEMCPY3D){
        .srcXInBytes = copy->srcXInBytes,
        .srcY = copy->srcY,
        .srcMemoryType = copy->srcMemoryType,
        .srcHost = copy->srcHost,
        .srcDevice = copy->srcDevice,
        .srcPitch = copy->srcPitch,
        .dstXInBytes = copy->dstXInBytes,
        .dstY = copy->dstY,
        .dstMemoryType = copy->dstMemoryType,
        .dstHost = copy->dstHost,
        .dstDevice = copy->dstDevice,
        .dstPitch = copy->dstPitch,
        .WidthInBytes = copy->WidthInBytes,
        .Height = copy->Height,
        .Depth = 1,
    };
}

static CUresult copy_box(const CUDA_MEMCPY2D *copy, CUstream stream, bool wait)
{
    CUDA_MEMCPY3D whole;

    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    whole = box(copy);
    return submit(&whole, stream, wait);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D *copy) { return copy_box(copy, NULL, true); }
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *copy) { return copy_box(copy, NULL, true); }
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream) { return copy_box(copy, stream, false); }

CUresult cuMemcpy3D(const CUDA_MEMCPY3D *copy) { return copy ? submit(copy, NULL, true) : CUDA_ERROR_INVALID_VALUE; }

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    return copy ? submit(copy, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

/* --- batches --- */

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
                            size_t *first, size_t attribute_count, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    size_t attribute = 0;

    if (!to || !from || !sizes || !count || !attributes || !first || !attribute_count || attribute_count > count || first[0] || !stream ||
        stream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < attribute_count; i++)
        if (attributes[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
            first[i] >= count || (i && first[i] <= first[i - 1]))
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (attribute + 1 < attribute_count && first[attribute + 1] == i)
            attribute++;
        if (attributes[attribute].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && !memory_at(from[i], sizes[i]))
            result = cuStreamSynchronize(stream);
        if (result == CUDA_SUCCESS)
            result = cuMemcpyAsync(to[i], from[i], sizes[i], stream);
    }
    return result;
}

/* Of pointers only: arrays are not there. */
CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream)
{
    CUresult result = !count || !list || flags || !stream || stream == CU_STREAM_LEGACY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUDA_MEMCPY3D copy = {
            .srcMemoryType = UNIFIED, .srcDevice = list[i].src.op.ptr.ptr, .srcPitch = list[i].src.op.ptr.rowLength,
            .srcHost = (const void *)(uintptr_t)list[i].src.op.ptr.ptr, .srcHeight = list[i].src.op.ptr.layerHeight,
            .dstMemoryType = UNIFIED, .dstDevice = list[i].dst.op.ptr.ptr, .dstPitch = list[i].dst.op.ptr.rowLength,
            .dstHost = (void *)(uintptr_t)list[i].dst.op.ptr.ptr, .dstHeight = list[i].dst.op.ptr.layerHeight,
            .WidthInBytes = list[i].extent.width, .Height = list[i].extent.height, .Depth = list[i].extent.depth,
        };
        if (list[i].src.type != CU_MEMCPY_OPERAND_TYPE_POINTER || list[i].dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER || !copy.WidthInBytes ||
            !copy.Height || !copy.Depth)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            result = submit(&copy, stream, false);
    }
    return result;
}
