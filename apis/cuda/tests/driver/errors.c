/* Wrong modules, bad handles, wild pointers, wrong sizes: an error each, and the program goes on. */
#include "common.h"
#include "kernels.h"

static void modules(void)
{
    static const char elf[64] = "\177ELF\2\1\1";
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr address;
    size_t size;
    char *truncated = strdup(vector_add);
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *option_values[] = {log, (void *)sizeof(log)};

    truncated[strlen(truncated) - 30] = 0;
    TELL(cuModuleLoadData(&module, truncated));
    TELL(cuModuleLoadDataEx(&module, PTX_HEADER ".visible .entry wrong() { add.u32 %r1, %r2, 1; ret; }", 2, options, option_values));
    printf("the log says something: %d\n", log[0] != 0);
    TELL(cuModuleLoadData(&module, "this is no module at all, but some text that is long enough"));
    printf("a header without code: %s\n", cuModuleLoadData(&module, elf) != CUDA_SUCCESS ? "refused" : "loaded");
    TELL(cuModuleLoad(&module, "/no/such/file"));
    TELL(cuModuleLoadData(&module, NULL));
    TELL(cuLibraryLoadData(&library, truncated, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuModuleLoadData(&module, vector_add));
    TELL(cuModuleGetFunction(&function, module, "no_such_function"));
    TELL(cuModuleGetGlobal(&address, &size, module, "no_such_variable"));
    MUST(cuLibraryLoadData(&library, vector_add, NULL, NULL, 0, NULL, NULL, 0));
    TELL(cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
    MUST(cuLibraryUnload(library));
    MUST(cuModuleUnload(module));
    free(truncated);
}

static void launches(void)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr x;
    int count = 0;
    void *parameters[] = {&x, &x, &x, &count};
    size_t offset, size;

    MUST(cuMemAlloc(&x, 16));
    MUST(cuModuleLoadData(&module, vector_add));
    MUST(cuModuleGetFunction(&function, module, "vector_add"));
    TELL(cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    TELL(cuLaunchKernel(function, 1, 1, 1, 0, 1, 1, 0, NULL, parameters, NULL));
    TELL(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, NULL, parameters, NULL));
    TELL(cuLaunchKernel(function, 1, 1, 1, 64, 64, 1, 0, NULL, parameters, NULL));
    TELL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 10 << 20, NULL, parameters, NULL));
    TELL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    TELL(cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    TELL(cuFuncGetParamInfo(function, 4, &offset, &size));
    TELL(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
    TELL(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20));
    TELL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 100000, NULL, parameters, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuModuleUnload(module));
    MUST(cuMemFree(x));
}

static void memory(void)
{
    CUdeviceptr x, wild = 0x300000000000 + ((CUdeviceptr)1 << 36), start;
    char bytes[64] = "";
    size_t size, pitch;
    unsigned type;

    MUST(cuMemAlloc(&x, 1000));
    TELL(cuMemAlloc(&start, 0));
    TELL(cuMemFree(wild));
    TELL(cuMemFree(x + 1));
    TELL(cuMemFree(0));
    TELL(cuMemcpyHtoD(wild, bytes, sizeof(bytes)));
    TELL(cuMemcpyDtoH(bytes, wild, sizeof(bytes)));
    TELL(cuMemcpyDtoD(x, wild, 8));
    TELL(cuMemcpyDtoD(wild, x, 8));
    TELL(cuMemcpy(wild, x, 8));
    TELL(cuMemsetD8(wild, 0, 8));
    TELL(cuMemcpyHtoD(x, bytes, 0));
    TELL(cuMemGetAddressRange(&start, &size, wild));
    MUST(cuMemGetAddressRange(&start, &size, x + 999));
    printf("starts there: %d, %zu bytes\n", start == x, size);
    TELL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)bytes));
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x + 5));
    printf("type %u\n", type);
    TELL(cuMemFreeHost(bytes));
    TELL(cuMemAllocPitch(&start, &pitch, 0, 10, 4));
    MUST(cuMemFree(x));
    TELL(cuMemFree(x));
}

static void values(void)
{
    CUdevice device;
    CUstream stream;
    CUevent event;
    int value;
    const char *name;

    TELL(cuDeviceGet(&device, 1000));
    TELL(cuDeviceGet(&device, -1));
    TELL(cuDeviceGetAttribute(&value, (CUdevice_attribute)100000, 0));
    TELL(cuStreamCreate(&stream, 77));
    TELL(cuEventCreate(&event, 0x1000));
    TELL(cuGetErrorName((CUresult)123456, &name));
    TELL(cuCtxSetCurrent(NULL));
    TELL(cuMemFree(0));
    TELL(cuCtxSynchronize());
    TELL(cuCtxPopCurrent(NULL));
}

int main(void)
{
    CUcontext context;
    int count;

    TELL(cuDeviceGetCount(&count));
    context = start();
    modules();
    launches();
    memory();
    values();
    MUST(cuCtxDestroy(context));
    puts("ok errors");
    return 0;
}
