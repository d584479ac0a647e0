/* Contexts with a part of a device's multiprocessors. */
#include "common.h"

int main(void)
{
    CUdevResource all, part[8], rest, forged;
    CUdevResourceDesc description;
    CUgreenCtx green, found;
    CUcontext context, own;
    CUstream stream;
    CUdeviceptr memory;
    unsigned groups = 2, value = 0, most = 0;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevSmResourceSplitByCount(NULL, &most, &all, NULL, 0, 16));
    MUST(cuDevSmResourceSplitByCount(part, &groups, &all, &rest, 0, 16));
    printf("%u multiprocessors, %u groups at most; %u groups of %u, %u are left\n", all.sm.smCount, most, groups, part[1].sm.smCount,
           rest.sm.smCount);
    MUST(cuDevResourceGenerateDesc(&description, part, 1));
    MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuCtxFromGreenCtx(&own, green));
    MUST(cuGreenCtxGetDevResource(green, &rest, CU_DEV_RESOURCE_TYPE_SM));
    printf("%u in it", rest.sm.smCount);
    MUST(cuCtxGetDevResource(own, &rest, CU_DEV_RESOURCE_TYPE_SM));
    printf(", %u by its context\n", rest.sm.smCount);
    MUST(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    MUST(cuStreamGetGreenCtx(stream, &found));
    CHECK(found == green);
    MUST(cuCtxSetCurrent(own));
    MUST(cuMemAlloc(&memory, 4096));
    MUST(cuMemsetD32Async(memory, 77, 1024, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(&value, memory, 4));
    printf("%u\n", value);
    /* Bytes that the driver did not make are no description. */
    forged = part[0];
    forged.type = CU_DEV_RESOURCE_TYPE_INVALID;
    TELL(cuDevResourceGenerateDesc(&description, &forged, 1));
    MUST(cuStreamDestroy(stream));
    MUST(cuMemFree(memory));
    MUST(cuCtxSetCurrent(context));
    MUST(cuGreenCtxDestroy(green));
    MUST(cuDevicePrimaryCtxRelease(0));
    puts("ok green");
    return 0;
}
