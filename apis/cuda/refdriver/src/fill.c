/* All forms of cuMemset: lines of equal elements. */
#include <string.h>

#include "driver.h"
#include "memory.h"
#include "operation.h"
#include "stream.h"

/* From the first to the last byte. */
static size_t extent(const CUDA_MEMSET_NODE_PARAMS *fill)
{
    return (fill->height - 1) * fill->pitch + fill->width * fill->elementSize;
}

CUresult fill_check(const CUDA_MEMSET_NODE_PARAMS *fill)
{
    const size_t limit = (size_t)1 << 40;
    size_t element = fill->elementSize;

    if (element != 1 && element != 2 && element != 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fill->width || !fill->height)
        return CUDA_SUCCESS;
    if (fill->dst % element || fill->width > limit || fill->height > limit || fill->pitch > limit ||
        (fill->height > 1 && (fill->pitch < fill->width * element || fill->pitch % element)) ||
        (fill->height > 1 && fill->pitch > limit / fill->height))
        return CUDA_ERROR_INVALID_VALUE;
    return memory_at(fill->dst, extent(fill)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fill_run(const CUDA_MEMSET_NODE_PARAMS *fill)
{
    char *bytes;

    if (!fill->width || !fill->height)
        return CUDA_SUCCESS;
    bytes = memory_at(fill->dst, extent(fill));
    if (!bytes)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (size_t line = 0; line < fill->height; line++, bytes += fill->pitch) {
        if (fill->elementSize == 1) {
            memset(bytes, (int)fill->value, fill->width);
            continue;
        }
        for (size_t i = 0; i < fill->width; i++)
            memcpy(bytes + i * fill->elementSize, &fill->value, fill->elementSize);
    }
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr address, size_t pitch, unsigned value, unsigned element, size_t width, size_t height,
                     CUstream handle, bool wait)
{
    struct operation operation = {
        .kind = OPERATION_FILL,
        .fill = {.dst = address, .pitch = pitch, .value = value, .elementSize = element, .width = width, .height = height},
    };
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result == CUDA_SUCCESS)
        result = fill_check(&operation.fill);
    if (result == CUDA_SUCCESS && wait)
        result = capture_forbids(stream);
    if (result == CUDA_SUCCESS)
        result = stream_submit(stream, &operation);
    if (result == CUDA_SUCCESS && wait)
        stream_wait(stream);
    return result;
}

CUresult cuMemsetD8(CUdeviceptr a, unsigned char value, size_t n) { return fill(a, 0, value, 1, n, 1, NULL, true); }
CUresult cuMemsetD16(CUdeviceptr a, unsigned short value, size_t n) { return fill(a, 0, value, 2, n, 1, NULL, true); }
CUresult cuMemsetD32(CUdeviceptr a, unsigned value, size_t n) { return fill(a, 0, value, 4, n, 1, NULL, true); }

CUresult cuMemsetD2D8(CUdeviceptr a, size_t pitch, unsigned char value, size_t width, size_t height)
{
    return fill(a, pitch, value, 1, width, height, NULL, true);
}

CUresult cuMemsetD2D16(CUdeviceptr a, size_t pitch, unsigned short value, size_t width, size_t height)
{
    return fill(a, pitch, value, 2, width, height, NULL, true);
}

CUresult cuMemsetD2D32(CUdeviceptr a, size_t pitch, unsigned value, size_t width, size_t height)
{
    return fill(a, pitch, value, 4, width, height, NULL, true);
}

CUresult cuMemsetD8Async(CUdeviceptr a, unsigned char value, size_t n, CUstream stream)
{
    return fill(a, 0, value, 1, n, 1, stream, false);
}

CUresult cuMemsetD16Async(CUdeviceptr a, unsigned short value, size_t n, CUstream stream)
{
    return fill(a, 0, value, 2, n, 1, stream, false);
}

CUresult cuMemsetD32Async(CUdeviceptr a, unsigned value, size_t n, CUstream stream)
{
    return fill(a, 0, value, 4, n, 1, stream, false);
}

CUresult cuMemsetD2D8Async(CUdeviceptr a, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream)
{
    return fill(a, pitch, value, 1, width, height, stream, false);
}

CUresult cuMemsetD2D16Async(CUdeviceptr a, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream)
{
    return fill(a, pitch, value, 2, width, height, stream, false);
}

CUresult cuMemsetD2D32Async(CUdeviceptr a, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream)
{
    return fill(a, pitch, value, 4, width, height, stream, false);
}
