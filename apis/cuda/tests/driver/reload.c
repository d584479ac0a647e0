/* Functions end with their modules, kernels with their libraries, everything with its context; what comes next may lie
 * at the same addresses, and is something else: other parameters, other attributes. */
#include "common.h"
#include "kernels.h"

enum { ROUNDS = 60 };

/* A kernel with `count` parameters (at least 2) that stores the last one where the first one points. */
static const char *kernel_text(int count)
{
    static char text[4096];
    int at = snprintf(text, sizeof text, PTX_HEADER ".visible .entry work(\n");

    for (int i = 0; i < count; i++)
        at += snprintf(text + at, sizeof text - at, ".param .u64 work_param_%d%s\n", i, i + 1 < count ? "," : "");
    snprintf(text + at, sizeof text - at,
             ")\n{\n.reg .b64 %%rd<4>;\n"
             ".shared .align 8 .b8 room[%d];\n"
             "ld.param.u64 %%rd1, [work_param_0];\n"
             "ld.param.u64 %%rd2, [work_param_%d];\n"
             "cvta.to.global.u64 %%rd3, %%rd1;\n"
             "st.global.u64 [%%rd3], %%rd2;\n"
             "ret;\n}\n", count * 64, count - 1);
    return text;
}

static int attribute(CUfunction function, CUfunction_attribute which)
{
    int value = -1;

    MUST(cuFuncGetAttribute(&value, which, function));
    return value;
}

static int blocks(CUfunction function, size_t shared)
{
    int count = -1;

    MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, 128, shared));
    return count;
}

/* Its parameters arrive. */
static void launched(CUfunction function, int count)
{
    uint64_t values[16], last = 1000 + (uint64_t)count, stored = 0;
    CUdeviceptr memory;
    void *parameters[16];

    MUST(cuMemAlloc(&memory, 8));
    MUST(cuMemsetD8(memory, 0, 8));
    for (int i = 0; i < 16; i++)
        parameters[i] = &values[i];
    values[0] = memory;
    values[count - 1] = last;
    MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuMemcpyDtoH(&stored, memory, 8));
    CHECK(stored == last);
    MUST(cuMemFree(memory));
}

/* Attributes of such a kernel's function; asked twice, as the second answer may be a remembered one. */
static void look(CUfunction function, int count)
{
    for (int twice = 0; twice < 2; twice++) {
        CHECK(attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) == count * 64);
        CHECK(attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) > 0);
    }
    launched(function, count);
}

static CUfunction loaded(CUmodule *module, int count)
{
    CUfunction function, again;

    MUST(cuModuleLoadData(module, kernel_text(count)));
    MUST(cuModuleGetFunction(&function, *module, "work"));
    MUST(cuModuleGetFunction(&again, *module, "work"));
    CHECK(function == again);
    return function;
}

static void modules(void)
{
    CUmodule module;

    for (int i = 0; i < ROUNDS; i++) {
        look(loaded(&module, 2 + i % 7), 2 + i % 7);
        MUST(cuModuleUnload(module));
    }
    puts("ok modules");
}

static void libraries(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        int count = 2 + i % 7, shared = -1;
        CUlibrary library;
        CUkernel kernel, listed;
        CUfunction function;
        CUdevice device;

        MUST(cuCtxGetDevice(&device));
        MUST(cuLibraryLoadData(&library, kernel_text(count), NULL, NULL, 0, NULL, NULL, 0));
        MUST(cuLibraryGetKernel(&kernel, library, "work"));
        MUST(cuLibraryEnumerateKernels(&listed, 1, library));
        CHECK(kernel == listed);
        MUST(cuKernelGetFunction(&function, kernel));
        for (int twice = 0; twice < 2; twice++) {
            MUST(cuKernelGetAttribute(&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, device));
            CHECK(shared == count * 64);
        }
        look(function, count);
        launched((CUfunction)kernel, count);
        CHECK(cuFuncGetAttribute(&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, (CUfunction)kernel) == CUDA_ERROR_INVALID_HANDLE);
        MUST(cuLibraryUnload(library));
    }
    puts("ok libraries");
}

/* No thread unloads the modules. */
static void contexts(void)
{
    CUcontext context, before;
    CUdevice device;
    CUmodule module;

    MUST(cuCtxGetCurrent(&before));
    MUST(cuCtxGetDevice(&device));
    for (int i = 0; i < ROUNDS; i++) {
        MUST(cuCtxCreate(&context, NULL, 0, device));
        look(loaded(&module, 2 + i % 7), 2 + i % 7);
        MUST(cuCtxDestroy(context));
    }
    for (int i = 0; i < ROUNDS; i++) {
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        look(loaded(&module, 2 + i % 7), 2 + i % 7);
        MUST(cuCtxSetCurrent(before));
        if (i % 2)
            MUST(cuDevicePrimaryCtxReset(device));
        MUST(cuDevicePrimaryCtxRelease(device));
    }
    puts("ok contexts");
}

/* Remembered answers about a function follow its settings. */
static void settings(void)
{
    CUmodule module;
    CUfunction function = loaded(&module, 3);

    for (int i = 0; i < 4; i++) {
        int most = i % 2 ? 65536 : 1024;
        MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most));
        CHECK(attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) == most);
        printf("blocks after %d: %d %d %d\n", most, blocks(function, 0), blocks(function, 32768), blocks(function, 32768));
    }
    MUST(cuModuleUnload(module));
}

int main(void)
{
    CUcontext context = start();

    modules();
    libraries();
    contexts();
    settings();
    MUST(cuCtxDestroy(context));
    puts("ok reload");
    return 0;
}
