/* The primary context after its last release: it has ended, also where a thread still has it. */
#include "common.h"

int main(void)
{
    CUcontext context, again;
    CUdeviceptr memory;
    unsigned flags;
    int active;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&memory, 4096));
    MUST(cuDevicePrimaryCtxRelease(0));
    TELL(cuMemsetD8(memory, 0, 16));
    TELL(cuDevicePrimaryCtxRelease(0));
    puts("== after the last release");
    TELL(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    TELL(cuMemAlloc(&memory, 4096));
    TELL(cuMemAlloc(&memory, 16 << 20));
    TELL(cuCtxSynchronize());
    puts("== retained again");
    TELL(cuDevicePrimaryCtxRetain(&again, 0));
    printf("the same: %d\n", again == context);
    TELL(cuCtxSetCurrent(again));
    TELL(cuMemAlloc(&memory, 4096));
    TELL(cuMemsetD8(memory, 0, 16));
    TELL(cuMemFree(memory));
    TELL(cuDevicePrimaryCtxRelease(0));
    puts("ok released");
    return 0;
}
