/* Managed memory: one pointer for the CPU and for kernels, copies and fills; what may be said and asked about it. */
#include "common.h"
#include "kernels.h"

enum { COUNT = 50000 };

static void launch(CUfunction function, void **parameters)
{
    MUST(cuLaunchKernel(function, (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
}

static void attributes(CUdeviceptr pointer)
{
    unsigned int type = 0, managed = 0;
    void *host = NULL;
    CUdeviceptr device = 0;

    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
    MUST(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer));
    MUST(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, pointer));
    MUST(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer));
    printf("type %u, managed %u, the same pointer: %d %d\n", type, managed, host == (void *)pointer, device == pointer);
}

int main(void)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUdeviceptr x, y, z, plain;
    unsigned int first = 40;
    int value = -1, count = COUNT;
    CUcontext context = start();
    CUmodule module, library;
    CUfunction add, fill;
    void *parameters[] = {&x, &y, &z, &count}, *filled[] = {&x, &first, &count};

    MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0));
    printf("managed memory: %d\n", value);
    MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    printf("at the same time: %d\n", value);
    MUST(cuModuleLoadData(&module, vector_add));
    MUST(cuModuleLoadData(&library, several));
    MUST(cuModuleGetFunction(&add, module, "vector_add"));
    MUST(cuModuleGetFunction(&fill, library, "fill"));
    MUST(cuMemAllocManaged(&x, COUNT * 4, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocManaged(&y, COUNT * 4, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocManaged(&z, COUNT * 4, CU_MEM_ATTACH_HOST));
    MUST(cuMemAlloc(&plain, COUNT * 4));

    float *a = (float *)x, *b = (float *)y, *c = (float *)z;
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 0.25f * (float)i;
        c[i] = -1;
    }
    MUST(cuStreamAttachMemAsync(NULL, z, 0, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemPrefetchAsync(x, COUNT * 4, here, 0, NULL));
    MUST(cuMemAdvise(y, COUNT * 4, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
    launch(add, parameters);
    MUST(cuCtxSynchronize());
    for (int i = 0; i < COUNT; i++)
        CHECK(c[i] == a[i] + b[i]);
    printf("vector_add: %016llx\n", (unsigned long long)checksum(c, COUNT * 4));

    /* The CPU reads what a kernel wrote, again and again, and the other way round. */
    for (int round = 0; round < 20; round++) {
        a[round] = 1000;
        launch(add, parameters);
        MUST(cuStreamSynchronize(NULL));
        CHECK(c[round] == 1000 + b[round]);
    }
    launch(fill, filled);
    MUST(cuCtxSynchronize());
    CHECK(((unsigned *)x)[7] == 47);

    MUST(cuMemcpyDtoD(plain, x, COUNT * 4));
    MUST(cuMemsetD32(x, 5, COUNT));
    MUST(cuCtxSynchronize());
    CHECK(((unsigned *)x)[COUNT - 1] == 5);
    MUST(cuMemcpy(y, plain, COUNT * 4));
    CHECK(((unsigned *)y)[9] == 49);
    MUST(cuMemcpyHtoD(x, b, COUNT * 4));
    MUST(cuMemcpyDtoH(c, x, COUNT * 4));
    MUST(cuMemcpy(x, z, COUNT * 4));
    CHECK(((unsigned *)z)[9] == 49 && ((unsigned *)x)[9] == 49);
    attributes(x + 100);

    TELL(cuMemAllocManaged(&x, 0, CU_MEM_ATTACH_GLOBAL));
    TELL(cuMemAllocManaged(&x, 4, 0));
    TELL(cuMemAllocManaged(NULL, 4, CU_MEM_ATTACH_GLOBAL));
    TELL(cuMemPrefetchAsync(plain, 4, here, 0, NULL));
    TELL(cuMemAdvise(x, COUNT * 8, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
    MUST(cuMemFree(x));
    MUST(cuMemFree(y));
    MUST(cuMemFree(z));
    MUST(cuMemFree(plain));
    MUST(cuModuleUnload(module));
    MUST(cuModuleUnload(library));
    MUST(cuCtxDestroy(context));
    return 0;
}
