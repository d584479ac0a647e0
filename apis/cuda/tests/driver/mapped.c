/* Page-locked memory that kernels look into: what each side finds of what the other wrote, and its end. */
#include "common.h"
#include "kernels.h"

enum { COUNT = 1000 };

static CUfunction add, fill;

static void launch(CUfunction function, void **parameters)
{
    MUST(cuLaunchKernel(function, (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
}

int main(void)
{
    CUdeviceptr x, y, sums;
    float *a, *b, found[COUNT];
    unsigned int *numbers, first = 40, flags = 0;
    int count = COUNT, half = COUNT / 2;
    void *memory = NULL, *last = NULL, *filling[] = {&x, &first, &half}, *adding[] = {&x, &y, &sums, &count};
    CUcontext context = start();
    CUmodule module, library;

    MUST(cuModuleLoadData(&module, vector_add));
    MUST(cuModuleLoadData(&library, several));
    MUST(cuModuleGetFunction(&add, module, "vector_add"));
    MUST(cuModuleGetFunction(&fill, library, "fill"));
    MUST(cuMemHostAlloc((void **)&a, COUNT * 4, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cuMemHostAlloc((void **)&b, COUNT * 4, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    MUST(cuMemHostGetDevicePointer(&x, a, 0));
    MUST(cuMemHostGetDevicePointer(&y, b, 0));
    MUST(cuMemHostGetFlags(&flags, a));
    printf("the same pointers: %d %d, looked into: %d\n", x == (CUdeviceptr)a, y == (CUdeviceptr)b, flags & CU_MEMHOSTALLOC_DEVICEMAP);
    MUST(cuMemAlloc(&sums, COUNT * 4));

    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 0.25f * (float)i;
    }
    launch(add, adding);
    MUST(cuMemcpyDtoH(found, sums, sizeof found));
    printf("kernels read what was written: %016llx\n", (unsigned long long)checksum(found, sizeof found));
    for (int round = 0; round < 20; round++) {
        b[round] = 1000;
        launch(add, adding);
        MUST(cuMemcpyDtoH(found, sums, sizeof found));
        CHECK(found[round] == 1000 + a[round]);
    }

    /* Each side writes its half. */
    numbers = (unsigned int *)a;
    numbers[COUNT - 1] = 7;
    launch(fill, filling);
    MUST(cuCtxSynchronize());
    printf("%u %u %u\n", numbers[0], numbers[half - 1], numbers[COUNT - 1]);
    first = 50;
    launch(fill, filling);
    numbers[COUNT - 1] = 8;
    MUST(cuCtxSynchronize());
    printf("%u %u %u\n", numbers[0], numbers[half - 1], numbers[COUNT - 1]);

    /* Copies in both directions, as with any other memory. */
    MUST(cuMemcpyHtoD(sums, a, COUNT * 4));
    MUST(cuMemcpyDtoH(b, sums, COUNT * 4));
    printf("copied: %d\n", memcmp(a, b, COUNT * 4) == 0);

    MUST(cuMemFreeHost(a));
    TELL(cuMemHostGetDevicePointer(&x, a, 0));
    TELL(cuMemFreeHost(a));
    MUST(cuMemFreeHost(b));
    for (int round = 0; round < 100; round++) {
        MUST(cuMemHostAlloc(&memory, 65536, CU_MEMHOSTALLOC_DEVICEMAP));
        if (last)
            MUST(cuMemFreeHost(last));
        last = memory;
    }
    MUST(cuMemFreeHost(memory));
    MUST(cuMemFree(sums));
    MUST(cuModuleUnload(module));
    MUST(cuModuleUnload(library));
    MUST(cuCtxDestroy(context));
    puts("ok mapped");
    return 0;
}
