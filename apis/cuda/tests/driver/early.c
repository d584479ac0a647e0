/* Calls before cuInit, without a context, and after a context's end: each answers as the driver would. */
#include "common.h"

static void ask(void)
{
    CUdevice device = 0;
    CUcontext context = NULL;
    CUdeviceptr memory = 0;
    CUstream stream = NULL;
    CUevent event = NULL;
    CUmodule module = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUmemoryPool pool = NULL;
    CUlibrary library = NULL;
    CUlinkState linker = NULL;
    CUstreamCaptureStatus status;
    unsigned long long identity = 0;
    unsigned word = 0;
    size_t size = 0, other = 0;
    int number = 0;
    float time;
    char bytes[64];
    void *host = NULL;

    TELL(cuDriverGetVersion(&number));
    TELL(cuDeviceGetCount(&number));
    TELL(cuDeviceGet(&device, 0));
    TELL(cuDeviceGetName(bytes, 64, 0));
    TELL(cuDeviceTotalMem(&size, 0));
    TELL(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
    TELL(cuCtxGetCurrent(&context));
    TELL(cuCtxSetCurrent(NULL));
    TELL(cuCtxGetDevice(&device));
    TELL(cuCtxPopCurrent(&context));
    TELL(cuCtxPushCurrent(NULL));
    TELL(cuCtxSynchronize());
    TELL(cuDevicePrimaryCtxGetState(0, &word, &number));
    TELL(cuMemAlloc(&memory, 16));
    TELL(cuMemFree(0));
    TELL(cuMemFree(16));
    TELL(cuMemAllocHost(&host, 16));
    TELL(cuMemFreeHost(NULL));
    TELL(cuMemHostAlloc(&host, 16, 0));
    TELL(cuMemAllocManaged(&memory, 16, 1));
    TELL(cuMemGetInfo(&size, &other));
    TELL(cuMemAllocAsync(&memory, 16, 0));
    TELL(cuMemFreeAsync(16, 0));
    TELL(cuMemcpy(16, 32, 4));
    TELL(cuMemcpyHtoD(16, bytes, 4));
    TELL(cuMemcpyDtoH(bytes, 16, 4));
    TELL(cuMemsetD8(16, 0, 4));
    TELL(cuStreamCreate(&stream, 0));
    TELL(cuStreamSynchronize(0));
    TELL(cuStreamQuery(0));
    TELL(cuEventCreate(&event, 0));
    TELL(cuEventQuery(0));
    TELL(cuEventElapsedTime(&time, 0, 0));
    TELL(cuModuleLoad(&module, NULL));
    TELL(cuModuleLoad(&module, "/nowhere"));
    TELL(cuModuleLoad(NULL, "/nowhere"));
    TELL(cuModuleLoadData(&module, NULL));
    TELL(cuModuleLoadData(&module, "junk"));
    TELL(cuModuleUnload(0));
    TELL(cuLibraryLoadFromFile(&library, "/nowhere", 0, 0, 0, 0, 0, 0));
    TELL(cuLinkCreate(0, 0, 0, &linker));
    TELL(cuGraphCreate(&graph, 0));
    TELL(cuGraphInstantiate(&exec, graph, 0));
    TELL(cuStreamIsCapturing(0, &status));
    TELL(cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    TELL(cuDeviceGetDefaultMemPool(&pool, 0));
    TELL(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 16));
    TELL(cuMemHostRegister(bytes, 64, 0));
    TELL(cuCtxGetFlags(&word));
    TELL(cuCtxGetLimit(&size, CU_LIMIT_STACK_SIZE));
    TELL(cuCtxGetId(0, &identity));
    TELL(cuLaunchHostFunc(0, 0, 0));
    TELL(cuCtxDestroy(0));
    TELL(cuStreamDestroy(0));
    TELL(cuEventDestroy(0));
    TELL(cuGraphDestroy(0));
}

int main(void)
{
    CUcontext context, other;
    CUdevice device;
    CUdeviceptr memory;
    unsigned flags;
    int active;

    puts("== before cuInit");
    ask();
    TELL(cuInit(1));
    TELL(cuInit(0));
    puts("== without a context");
    ask();
    TELL(cuDeviceGet(&device, 0));
    TELL(cuDevicePrimaryCtxRetain(&context, device));
    TELL(cuCtxSetCurrent(context));
    TELL(cuMemAlloc(&memory, 4096));
    TELL(cuDevicePrimaryCtxReset(device));
    puts("== after a reset");
    TELL(cuMemAlloc(&memory, 4096));
    TELL(cuCtxSynchronize());
    TELL(cuStreamSynchronize(0));
    TELL(cuMemsetD8(memory, 0, 16));
    TELL(cuCtxGetCurrent(&other));
    TELL(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    TELL(cuCtxSetCurrent(context));
    TELL(cuMemAlloc(&memory, 16));
    TELL(cuDevicePrimaryCtxRetain(&context, 0));
    TELL(cuCtxSetCurrent(context));
    TELL(cuMemAlloc(&memory, 16));
    TELL(cuMemFree(memory));
    TELL(cuMemFree(memory));
    TELL(cuCtxCreate(&other, NULL, 0, 0));
    TELL(cuCtxDestroy(other));
    TELL(cuCtxSynchronize());
    TELL(cuMemAlloc(&memory, 16));
    puts("ok early");
    return 0;
}
