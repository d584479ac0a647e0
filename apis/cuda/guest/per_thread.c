/* Functions for threads that have default streams of their own. */
#include "guest/functions.h"
/* The stream that 0 stands for. */
CUstream cuda_thread_stream(CUstream stream) {
    return stream ? stream : CU_STREAM_PER_THREAD;
}

/* A call that waits in the thread's default stream: the same without waiting, and then its end. */
CUresult cuda_thread_finish(CUresult status) {
    return status == CUDA_SUCCESS ? cuStreamSynchronize(CU_STREAM_PER_THREAD) : status;
}

CUresult cuda_launch_ex_in_thread(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    CUlaunchConfig own = *config;
    own.hStream = cuda_thread_stream(config->hStream);
    return cuda_launch_ex(&own, function, parameters, extra);
}
