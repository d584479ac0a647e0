/* Memory of cuMemAlloc that is freed in the order of a stream, as libraries above the driver do with their buffers. */
#include "common.h"

int main(void)
{
    CUcontext context;
    CUdeviceptr memory, pooled;
    CUstream stream;
    unsigned word = 0;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&memory, 1 << 20));
    MUST(cuMemAllocAsync(&pooled, 4096, stream));
    MUST(cuMemsetD32Async(memory, 7, 1 << 18, stream));
    MUST(cuMemcpyDtoDAsync(pooled, memory, 4096, stream));
    /* The work before it still uses the memory. */
    TELL(cuMemFreeAsync(memory, stream));
    MUST(cuMemcpyDtoHAsync(&word, pooled, sizeof word, stream));
    TELL(cuMemFreeAsync(pooled, stream));
    MUST(cuStreamSynchronize(stream));
    printf("word %u\n", word);
    MUST(cuMemAlloc(&memory, 1 << 20));
    TELL(cuMemFreeAsync(memory, NULL));
    puts("ok freed");
    return 0;
}
