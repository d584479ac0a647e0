/* Copies whose sides the application does not name, and copies of boxes. */
#include "guest/guest.h"
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* True if memory is shared with the API server, all of it. */
int cuda_shared(const void *memory, size_t bytes) {
    return bytes && memory && aviary_is_zerocopy(memory) && aviary_is_zerocopy((const char *)memory + bytes - 1);
}

/* True if the device may write a number there: page-locked memory. */
int cuda_is_shared_word(CUdeviceptr address) {
    return address % 4 == 0 && cuda_shared((const void *)address, 4);
}

/* True if an address of unknown kind may be taken for one of this process. Looks at both ends
 * only, and where it may not look says yes: the copy then ends as one of the CPU's would. */
int cuda_is_readable(CUdeviceptr address, size_t bytes) {
    const char *memory = (const char *)address;
    char byte;
    if (!bytes || cuda_shared(memory, bytes))
        return 1;
    struct iovec here = {&byte, 1};
    const char *ends[] = {memory, memory + bytes - 1};
    for (int i = 0; i < 2; i++) {
        struct iovec there = {(void *)ends[i], 1};
        if (syscall(SYS_process_vm_readv, getpid(), &here, 1, &there, 1, 0) < 0 && errno == EFAULT)
            return 0;
    }
    return 1;
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

/* Bytes from the start of host memory to the end of the box's last row. */
static size_t extent(const CUDA_MEMCPY3D *copy, size_t x, size_t y, size_t z, size_t pitch, size_t height) {
    if (!copy->WidthInBytes || !copy->Height || !copy->Depth)
        return 0;
    size_t row = pitch ? pitch : x + copy->WidthInBytes;
    size_t rows = height ? height : y + copy->Height;
    return ((z + copy->Depth - 1) * rows + y + copy->Height - 1) * row + x + copy->WidthInBytes;
}

static CUmemorytype settle(CUmemorytype type, CUdeviceptr pointer) {
    if (type != CU_MEMORYTYPE_UNIFIED)
        return type;
    return cuda_is_device_address(pointer) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

/* The copy without the host's addresses, and these by themselves. */
void cuda_split_copy(const CUDA_MEMCPY3D *wanted, CUDA_MEMCPY3D *result, struct cuda_host_sides *sides) {
    CUDA_MEMCPY3D copy = *wanted;
    *sides = (struct cuda_host_sides){0};
    /* Unified memory says where it is by its device pointer. */
    if (copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED)
        copy.srcHost = (const void *)copy.srcDevice;
    if (copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED)
        copy.dstHost = (void *)copy.dstDevice;
    copy.srcMemoryType = settle(copy.srcMemoryType, copy.srcDevice);
    copy.dstMemoryType = settle(copy.dstMemoryType, copy.dstDevice);
    if (copy.srcMemoryType == CU_MEMORYTYPE_HOST) {
        sides->from = (void *)copy.srcHost;
        sides->from_bytes = extent(&copy, copy.srcXInBytes, copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight);
    }
    if (copy.dstMemoryType == CU_MEMORYTYPE_HOST) {
        sides->to = copy.dstHost;
        sides->to_bytes = extent(&copy, copy.dstXInBytes, copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight);
    }
    copy.srcHost = NULL;
    copy.dstHost = NULL;
    if (copy.srcMemoryType != CU_MEMORYTYPE_ARRAY)
        copy.srcArray = NULL;
    if (copy.dstMemoryType != CU_MEMORYTYPE_ARRAY)
        copy.dstArray = NULL;
    *result = copy;
}

CUresult cuda_copy_3d(const CUDA_MEMCPY3D *wanted, CUstream stream) {
    CUDA_MEMCPY3D copy;
    struct cuda_host_sides sides;
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    if (cuda_captures_box(wanted, stream))
        return cuda_capture_box(wanted, stream);
    cuda_split_copy(wanted, &copy, &sides);
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
