/* The mode in which the server asks the driver: captures of this and other threads forbid nothing then that has to do with streams
 * that do not capture, and what is asked breaks into none. */
#ifndef AVIARY_CUDA_CAPTURE_MODE_H
#define AVIARY_CUDA_CAPTURE_MODE_H
#include <cuda.h>

/* The thread's mode before, for `cuda_end_relaxed`. */
static inline CUstreamCaptureMode cuda_begin_relaxed(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
        mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return mode;
}

static inline void cuda_end_relaxed(CUstreamCaptureMode mode) {
    cuThreadExchangeStreamCaptureMode(&mode);
}

#endif
