/* Calls of NVIDIA's libraries before every launch: they ask for the kernel's function and for all its attributes, set an
 * attribute to what it is, and launch with attributes whose unused bytes are whatever was on the stack. */
#include "common.h"
#include "kernels.h"

enum { ROUNDS = 500 };

static const char *text = PTX_HEADER ".visible .entry add_one(\n.param .u64 add_one_param_0\n)\n{\n.reg .b32 %r<3>;\n.reg .b64 %rd<3>;\n"
                                     "ld.param.u64 %rd1, [add_one_param_0];\ncvta.to.global.u64 %rd2, %rd1;\n"
                                     "ld.global.u32 %r1, [%rd2];\nadd.u32 %r2, %r1, 1;\nst.global.u32 [%rd2], %r2;\nret;\n}\n";

static void launch(CUkernel kernel, CUdeviceptr memory, unsigned grid, int round)
{
    CUlaunchAttribute attribute;
    void *parameters[] = {&memory};

    memset(&attribute, round, sizeof(attribute));
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 0;
    CUlaunchConfig config = {.gridDimX = grid, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
                             .attrs = &attribute, .numAttrs = 1};
    MUST(cuLaunchKernelEx(&config, (CUfunction)kernel, parameters, NULL));
}

static int dynamic_shared(CUkernel kernel, CUdevice device)
{
    int value = -1;

    MUST(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, device));
    return value;
}

static void again_and_again(CUkernel kernel, CUdevice device, CUdeviceptr memory)
{
    CUfunction first = NULL, function;
    int value, wrong = 0;
    unsigned sum = 0;
    size_t limit;

    MUST(cuMemsetD32(memory, 0, 1));
    for (int round = 0; round < ROUNDS; round++) {
        MUST(cuKernelGetFunction(&function, kernel));
        first = first ? first : function;
        wrong += function != first;
        for (int which = 0; which < CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET; which++)
            MUST(cuKernelGetAttribute(&value, which, kernel, device));
        MUST(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096, kernel, device));
        MUST(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
        launch(kernel, memory, 1, round);
    }
    MUST(cuMemcpyDtoH(&sum, memory, 4));
    printf("%u launches, other functions %d\n", sum, wrong);
}

/* An answer that was remembered is not given after something was set. */
static void set_in_between(CUkernel kernel, CUdevice device)
{
    CUfunction function;
    size_t limit;
    int value;

    MUST(cuKernelGetFunction(&function, kernel));
    for (int i = 0; i < 3; i++) {
        MUST(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8192, kernel, device));
        printf("kernel %d", dynamic_shared(kernel, device));
        MUST(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0, kernel, device));
        printf(" %d", dynamic_shared(kernel, device));
        MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2048));
        MUST(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
        printf(", function %d", value);
        /* The same as before, but no longer what the function has. */
        MUST(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0, kernel, device));
        MUST(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
        printf(" %d\n", value);
    }
    for (size_t bytes = 2048; bytes <= 8192; bytes *= 2) {
        MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes));
        MUST(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
        printf("stack %d\n", limit == bytes);
    }
}

int main(void)
{
    /* Before the first call: the program's own environment, not the one that it was started with. */
    if (getenv("SET_CUDA_LAUNCH_BLOCKING"))
        setenv("CUDA_LAUNCH_BLOCKING", getenv("SET_CUDA_LAUNCH_BLOCKING"), 1);
    CUcontext context = start();
    CUdeviceptr memory;
    CUlibrary library;
    CUkernel kernel;
    CUdevice device;

    MUST(cuCtxGetDevice(&device));
    MUST(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "add_one"));
    MUST(cuMemAlloc(&memory, 4));
    again_and_again(kernel, device, memory);
    set_in_between(kernel, device);
    MUST(cuLibraryUnload(library));
    MUST(cuMemFree(memory));
    MUST(cuCtxDestroy(context));
    puts("ok repeats");
    return 0;
}
