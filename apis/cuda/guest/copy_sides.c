/* Where the sides of a copy are. */
#include "guest/ranges.h"
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* True if memory is shared with the API server, all of it. */
int cuda_shared(const void *memory, size_t bytes) {
    return bytes && memory && aviary_is_zerocopy(memory) && aviary_is_zerocopy((const char *)memory + bytes - 1);
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
