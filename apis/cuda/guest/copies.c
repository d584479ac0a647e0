/* Copies whose sides the application does not name, and copies of boxes. */
#include "guest/graphs.h"
#include <string.h>

/* True if the device may write a number there: page-locked memory. */
int cuda_is_shared_word(CUdeviceptr address) {
    return address % 4 == 0 && cuda_shared((const void *)address, 4);
}

CUresult cuda_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    if (cuda_lacks_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    int to_device = cuda_is_device_address(to), from_device = cuda_is_device_address(from);
    if ((!to_device && !cuda_is_readable(to, bytes)) || (!from_device && !cuda_is_readable(from, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    if (to_device && from_device)
        return cuMemcpyDtoD_v2(to, from, bytes);
    if (to_device)
        return cuMemcpyHtoD_v2(to, (const void *)from, bytes);
    if (from_device)
        return cuMemcpyDtoH_v2((void *)to, from, bytes);
    CUresult status = cuCtxSynchronize();
    if (status == CUDA_SUCCESS)
        memmove((void *)to, (const void *)from, bytes);
    return status;
}

CUresult cuda_copy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    if (cuda_lacks_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    int to_device = cuda_is_device_address(to), from_device = cuda_is_device_address(from);
    if ((!to_device && !cuda_is_readable(to, bytes)) || (!from_device && !cuda_is_readable(from, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    if (to_device && from_device)
        return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
    if (to_device)
        return cuMemcpyHtoDAsync_v2(to, (const void *)from, bytes, stream);
    if (from_device)
        return cuMemcpyDtoHAsync_v2((void *)to, from, bytes, stream);
    if (cuda_captures_host(stream))
        return cuda_capture_line(CU_MEMORYTYPE_HOST, to, CU_MEMORYTYPE_HOST, from, bytes, stream);
    /* Within the host's memory: after what is in the stream, and at once. */
    CUresult status = cuStreamSynchronize(stream);
    if (status == CUDA_SUCCESS)
        memmove((void *)to, (const void *)from, bytes);
    return status;
}

/* ---- Boxes ---------------------------------------------------------------------------------- */

CUresult cuda_copy_3d(const CUDA_MEMCPY3D *wanted, CUstream stream) {
    CUDA_MEMCPY3D copy;
    struct cuda_host_sides sides;
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    if (cuda_captures_box(wanted, stream))
        return cuda_capture_box(wanted, stream);
    cuda_split_copy(wanted, &copy, &sides);
    void *from = cuda_in_arena(sides.from, sides.from_bytes), *to = cuda_in_arena(sides.to, sides.to_bytes);
    sides.from = from ? from : sides.from;
    sides.to = to ? to : sides.to;
    return aviaryCopy(copy, sides.from, sides.from_bytes, sides.to, sides.to_bytes, stream);
}

CUresult cuda_copy_2d(const CUDA_MEMCPY2D *flat, CUstream stream) {
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D copy = {
        .srcXInBytes = flat->srcXInBytes, .srcY = flat->srcY, .srcMemoryType = flat->srcMemoryType,
        .srcHost = flat->srcHost, .srcDevice = flat->srcDevice, .srcArray = flat->srcArray, .srcPitch = flat->srcPitch,
        .dstXInBytes = flat->dstXInBytes, .dstY = flat->dstY, .dstMemoryType = flat->dstMemoryType,
        .dstHost = flat->dstHost, .dstDevice = flat->dstDevice, .dstArray = flat->dstArray, .dstPitch = flat->dstPitch,
        .WidthInBytes = flat->WidthInBytes, .Height = flat->Height, .Depth = 1,
    };
    return cuda_copy_3d(&copy, stream);
}

CUresult cuda_alloc_pitch(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element) {
    enum { ALIGNMENT = 512 };
    if (!pointer || !pitch || !width || !height || (element != 4 && element != 8 && element != 16) || width > (size_t)1 << 40
        || height > (size_t)1 << 40)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return cuMemAlloc_v2(pointer, *pitch * height);
}

/* Frees memory of cuMemAlloc in the order of a stream: when the stream's work is done, which is waited for. */
CUresult cuda_free_placed(CUdeviceptr pointer, CUstream stream) {
    CUresult status = cuStreamSynchronize(stream);
    return status == CUDA_SUCCESS ? cuMemFree_v2(pointer) : status;
}

/* Memory of a pool, or of a graph, by the function for all memory: which waits. */
CUresult cuda_free_pooled(CUdeviceptr pointer) {
    CUresult status = cuCtxSynchronize();
    if (status == CUDA_SUCCESS)
        status = cuMemFreeAsync(pointer, NULL);
    return status == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : status;
}
