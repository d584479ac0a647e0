// Uses Figure 4's functions the way section 4.1 of the paper walks through them.
#include <cuda.h>
#include <stdio.h>
#include <string.h>

static void check(const char *what, CUresult result) { printf("%s: %d\n", what, (int)result); }

int main(void) {
    float in[256], out[256], again[256];
    for (int i = 0; i < 256; i++) in[i] = (float)i;
    memset(out, 0xff, sizeof out);
    memset(again, 0xff, sizeof again);
    CUdeviceptr a, b;
    CUstream stream;
    CUmodule module;
    CUfunction scale, scale64, none;
    check("init", cuInit(0));
    check("alloc a", cuMemAlloc(&a, sizeof in));
    check("alloc b", cuMemAlloc(&b, sizeof in));
    check("alloc too much", cuMemAlloc(&b, 1 << 21));
    check("stream", cuStreamCreate(&stream, 0));
    check("module", cuModuleLoadData(&module, "fake"));
    check("scale", cuModuleGetFunction(&scale, module, "scale"));
    check("scale64", cuModuleGetFunction(&scale64, module, "scale64"));
    check("no such kernel", cuModuleGetFunction(&none, module, "none"));
    check("copy in a", cuMemcpyHtoD(a, in, sizeof in));
    check("copy in b", cuMemcpyHtoD(b, in, sizeof in));
    float half = 0.5f;
    double triple = 3.0;
    int n = 256;
    void *first[] = {&a, &half, &n}, *second[] = {&b, &triple, &n};
    check("launch a", cuLaunchKernel(scale, 1, 1, 1, 256, 1, 1, 0, stream, first, NULL));
    check("launch b", cuLaunchKernel(scale64, 1, 1, 1, 256, 1, 1, 0, stream, second, NULL));
    char packed[8] = {0};
    size_t size = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    check("launch with extra", cuLaunchKernel(scale, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
    check("copy out a", cuMemcpyDtoHAsync(out, a, sizeof out, stream));
    check("copy out b", cuMemcpyDtoHAsync(again, b, sizeof again, stream));
    int untouched = 1;
    for (int i = 0; i < 256; i++) untouched &= ((unsigned *)out)[i] == 0xffffffff;
    printf("not copied before the synchronization: %s\n", untouched ? "yes" : "no");
    check("synchronize", cuStreamSynchronize(stream));
    double sum = 0;
    for (int i = 0; i < 256; i++) sum += out[i] + again[i];
    printf("sum: %.1f\n", sum);
    memset(out, 0, sizeof out);
    check("synchronize again", cuStreamSynchronize(stream));
    printf("copied once only: %s\n", out[5] == 0 ? "yes" : "no");
    check("free a", cuMemFree(a));
    check("free b", cuMemFree(b));
    check("destroy", cuStreamDestroy(stream));
    check("unload", cuModuleUnload(module));
    return 0;
}
