/* Matrix multiplication (naive, and tiled in shared memory) and sums (shared memory, warps, atomics). */
#include "common.h"
#include "kernels.h"

enum { SIDE = 48, COUNT = 5000 };
static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
static unsigned values[COUNT];

static void multiply(CUmodule module, const char *name)
{
    CUdeviceptr x, y, z;
    CUfunction function;
    unsigned side = SIDE;
    void *parameters[] = {&x, &y, &z, &side};
    int shared;

    MUST(cuModuleGetFunction(&function, module, name));
    MUST(cuFuncGetAttribute(&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
    MUST(cuMemAlloc(&x, sizeof(a)));
    MUST(cuMemAlloc(&y, sizeof(b)));
    MUST(cuMemAlloc(&z, sizeof(c)));
    MUST(cuMemcpyHtoD(x, a, sizeof(a)));
    MUST(cuMemcpyHtoD(y, b, sizeof(b)));
    MUST(cuLaunchKernel(function, SIDE / 8, SIDE / 8, 1, 8, 8, 1, 0, NULL, parameters, NULL));
    MUST(cuMemcpyDtoH(c, z, sizeof(c)));
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            float sum = 0;
            /* Small integers: exact in any order. */
            for (int k = 0; k < SIDE; k++)
                sum += a[i * SIDE + k] * b[k * SIDE + j];
            CHECK(c[i * SIDE + j] == sum);
        }
    printf("%s: %d bytes of shared memory, %016llx\n", name, shared, (unsigned long long)checksum(c, sizeof(c)));
    MUST(cuMemFree(x));
    MUST(cuMemFree(y));
    MUST(cuMemFree(z));
}

static void sum(CUmodule module, const char *name, unsigned shared)
{
    CUdeviceptr x, y;
    CUfunction function;
    unsigned count = COUNT, result, expected = 0;
    void *parameters[] = {&x, &y, &count};

    for (unsigned i = 0; i < COUNT; i++)
        expected += values[i] = i * 7 % 1000;
    MUST(cuModuleGetFunction(&function, module, name));
    MUST(cuMemAlloc(&x, sizeof(values)));
    MUST(cuMemAlloc(&y, sizeof(result)));
    MUST(cuMemcpyHtoD(x, values, sizeof(values)));
    MUST(cuMemsetD32(y, 0, 1));
    MUST(cuLaunchKernel(function, (COUNT + 127) / 128, 1, 1, 128, 1, 1, shared, NULL, parameters, NULL));
    MUST(cuMemcpyDtoH(&result, y, sizeof(result)));
    CHECK(result == expected);
    printf("%s: %u\n", name, result);
    MUST(cuMemFree(x));
    MUST(cuMemFree(y));
}

int main(void)
{
    CUcontext context = start();
    CUmodule module;

    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = (float)(i % 13 - 6);
        b[i] = (float)(i % 11 - 5);
    }
    MUST(cuModuleLoadDataEx(&module, matrix, 0, NULL, NULL));
    multiply(module, "multiply_naive");
    multiply(module, "multiply_tiled");
    MUST(cuModuleUnload(module));
    MUST(cuModuleLoadData(&module, reduction));
    sum(module, "sum_shared", 128 * sizeof(unsigned));
    sum(module, "sum_warps", 0);
    MUST(cuModuleUnload(module));
    MUST(cuCtxDestroy(context));
    puts("ok matrices");
    return 0;
}
