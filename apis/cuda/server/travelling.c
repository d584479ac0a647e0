/* Long copies out to the memory of an application on another machine: what has come from the device leaves while the rest is copied. */
#include "server.h"
#include <aviary/server.h>

/* `stream`: NULL, if none was named. The driver returns when the bytes are there, as `to` is not page-locked where they travel. */
static CUresult copy(void *to, CUdeviceptr from, size_t bytes, const CUstream *stream) {
    return stream ? cuMemcpyDtoHAsync_v2(to, from, bytes, *stream) : cuMemcpyDtoH_v2(to, from, bytes);
}

static CUresult copy_parts(void *to, CUdeviceptr from, size_t bytes, const CUstream *stream) {
    size_t part = aviary_output_part(to, bytes), at = 0;
    CUresult status = CUDA_SUCCESS;
    for (; part && bytes - at > part && status == CUDA_SUCCESS; at += part) {
        status = copy((char *)to + at, from + at, part, stream);
        if (status == CUDA_SUCCESS)
            aviary_output_there((char *)to + at, part);
    }
    return status == CUDA_SUCCESS ? copy((char *)to + at, from + at, bytes - at, stream) : status;
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes) {
    return copy_parts(to, from, bytes, NULL);
}

void *cuda_copy_out_function(void) {
    return (void *)copy_out;
}

static CUresult copy_out_async(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_parts(to, from, bytes, &stream);
}

void *cuda_copy_out_async_function(void) {
    return (void *)copy_out_async;
}
