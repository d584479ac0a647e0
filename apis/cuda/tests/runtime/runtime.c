/* A program of the runtime API, as far as it can be written without NVIDIA's compiler. The runtime library checks
 * the driver below it (its export tables) before its first call succeeds. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../driver/kernels.h"
#include "must.h"

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #condition);     \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

enum { COUNT = 4096 };
static float a[COUNT], b[COUNT], c[COUNT];

static void called(void *data) { ++*(int *)data; }

static void devices(void)
{
    static struct cudaDeviceProp properties;
    int count, driver, runtime;

    MUST(cudaGetDeviceCount(&count));
    MUST(cudaDriverGetVersion(&driver));
    MUST(cudaRuntimeGetVersion(&runtime));
    MUST(cudaGetDeviceProperties(&properties, 0));
    printf("%d devices, driver %d, runtime %d\n", count, driver, runtime);
    printf("%d.%d, %d multiprocessors, warps of %d\n", properties.major, properties.minor, properties.multiProcessorCount,
           properties.warpSize);
}

static void kernel(void)
{
    cudaLibrary_t library;
    cudaKernel_t add;
    cudaStream_t stream;
    cudaEvent_t start, end;
    float *x, *y, *z, *pinned, milliseconds;
    int count = COUNT, calls = 0;
    void *parameters[] = {&x, &y, &z, &count};
    dim3 grid = {COUNT / 128, 1, 1}, block = {128, 1, 1};

    MUST(cudaLibraryLoadData(&library, vector_add, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cudaLibraryGetKernel(&add, library, "vector_add"));
    MUST(cudaMalloc((void **)&x, sizeof(a)));
    MUST(cudaMalloc((void **)&y, sizeof(b)));
    MUST(cudaMalloc((void **)&z, sizeof(c)));
    MUST(cudaMallocHost((void **)&pinned, sizeof(c)));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&end));
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 3.0f * (float)i;
    }
    MUST(cudaMemcpy(x, a, sizeof(a), cudaMemcpyHostToDevice));
    MUST(cudaMemcpyAsync(y, b, sizeof(b), cudaMemcpyHostToDevice, stream));
    MUST(cudaMemsetAsync(z, 0, sizeof(c), stream));
    MUST(cudaEventRecord(start, stream));
    MUST(cudaLaunchKernel((const void *)add, grid, block, parameters, 0, stream));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaMemcpyAsync(pinned, z, sizeof(c), cudaMemcpyDeviceToHost, stream));
    MUST(cudaLaunchHostFunc(stream, called, &calls));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 0 && calls == 1);
    for (int i = 0; i < COUNT; i++)
        CHECK(pinned[i] == 4.0f * (float)i);
    printf("kernel: last is %g\n", pinned[COUNT - 1]);

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    MUST(cudaMemsetAsync(z, 0, sizeof(c), stream));
    MUST(cudaLaunchKernel((const void *)add, grid, block, parameters, 0, stream));
    MUST(cudaMemcpyAsync(y, z, sizeof(c), cudaMemcpyDeviceToDevice, stream));
    MUST(cudaLaunchHostFunc(stream, called, &calls));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(c, y, sizeof(c), cudaMemcpyDeviceToHost));
    CHECK(calls == 4);
    for (int i = 0; i < COUNT; i++)
        CHECK(c[i] == 6.0f * (float)i);
    printf("graph: last is %g\n", c[COUNT - 1]);
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));

    /* The thread's own default stream. */
    MUST(cudaLaunchKernel((const void *)add, grid, block, parameters, 0, cudaStreamPerThread));
    MUST(cudaStreamSynchronize(cudaStreamPerThread));
    MUST(cudaMemcpy(c, z, sizeof(c), cudaMemcpyDeviceToHost));
    printf("per thread: last is %g\n", c[COUNT - 1]);

    MUST(cudaEventDestroy(start));
    MUST(cudaEventDestroy(end));
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFreeHost(pinned));
    MUST(cudaFree(x));
    MUST(cudaFree(y));
    MUST(cudaFree(z));
    MUST(cudaLibraryUnload(library));
}

static void errors(void)
{
    void *memory;
    struct cudaPointerAttributes attributes;

    printf("too much: %s\n", cudaGetErrorName(cudaMalloc(&memory, (size_t)1 << 46)));
    printf("last error: %s\n", cudaGetErrorName(cudaGetLastError()));
    printf("wild free: %s\n", cudaGetErrorName(cudaFree((void *)0x300000000007)));
    (void)cudaGetLastError();
    MUST(cudaMalloc(&memory, 100));
    MUST(cudaPointerGetAttributes(&attributes, memory));
    printf("type %d on device %d\n", attributes.type, attributes.device);
    MUST(cudaFree(memory));
    MUST(cudaMallocAsync(&memory, 1000, 0));
    MUST(cudaFreeAsync(memory, 0));
    MUST(cudaDeviceSynchronize());
}

int main(void)
{
    devices();
    kernel();
    errors();
    MUST(cudaDeviceReset());
    kernel();
    puts("ok runtime");
    return 0;
}
