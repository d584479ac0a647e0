/* Functions that a stream calls on the host, and values in memory that it writes or waits for. */
#include "memory.h"
#include "stream.h"

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    struct operation operation = {.kind = OPERATION_HOST, .host = {.fn = function, .userData = data}};
    CUstream stream;
    CUresult result = function ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    return result == CUDA_SUCCESS ? stream_submit(stream, &operation) : result;
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data, unsigned flags)
{
    struct operation operation = {.kind = OPERATION_CALLBACK, .callback = {function, data, handle}};
    CUstream stream;
    CUresult result = function && !flags ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        result = capture_forbids(stream);
    return result == CUDA_SUCCESS ? stream_submit(stream, &operation) : result;
}

static CUresult value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned bytes, unsigned flags,
                      enum operation_kind kind, unsigned known)
{
    struct operation operation = {.kind = kind, .value = {address, value, bytes, flags}};
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (flags & ~known || address % bytes || !memory_at(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(stream, &operation);
}

static const unsigned write_flags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER, wait_flags = 3;

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t word, unsigned flags)
{
    return value(stream, address, word, 4, flags, OPERATION_WRITE_VALUE, write_flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t word, unsigned flags)
{
    return value(stream, address, word, 8, flags, OPERATION_WRITE_VALUE, write_flags);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t word, unsigned flags)
{
    return value(stream, address, word, 4, flags, OPERATION_WAIT_VALUE, wait_flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t word, unsigned flags)
{
    return value(stream, address, word, 8, flags, OPERATION_WAIT_VALUE, wait_flags);
}
