/* A kernel that touches a wild address: the error stays with its context and ends with it. */
#include "common.h"
#include "kernels.h"

int main(void)
{
    CUcontext context = start(), second;
    CUmodule module;
    CUfunction fill;
    CUdeviceptr memory, wild = 0x300000000000 + ((CUdeviceptr)1 << 36);
    CUstream stream;
    CUevent event;
    unsigned first = 1, count = 10, value;
    void *parameters[] = {&wild, &first, &count};
    char bytes[16];

    MUST(cuMemAlloc(&memory, 16));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    TELL(cuStreamSynchronize(stream));
    TELL(cuMemcpyDtoH(bytes, memory, 16));
    TELL(cuMemAlloc(&memory, 16));
    TELL(cuEventRecord(event, stream));
    TELL(cuCtxSynchronize());
    TELL(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    /* It ends the context, whether or not it reports the error once more. */
    (void)cuCtxDestroy(context);

    /* Another context of the same process is not concerned. */
    MUST(cuCtxCreate(&second, NULL, 0, 0));
    MUST(cuMemAlloc(&memory, 16));
    MUST(cuMemsetD32(memory, 3, 4));
    MUST(cuMemcpyDtoH(&value, memory, 4));
    printf("afterwards: %u\n", value);
    MUST(cuCtxDestroy(second));
    puts("ok illegal");
    return 0;
}
