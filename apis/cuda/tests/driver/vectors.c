/* Kernels: vector addition, y = a*x + y, filling, counting; launched in each way. */
#include "common.h"
#include "kernels.h"

enum { COUNT = 10000 };
static float a[COUNT], b[COUNT], c[COUNT];

static void add(void)
{
    CUdeviceptr x, y, z;
    CUmodule module;
    CUfunction function;
    int count = COUNT;
    void *parameters[] = {&x, &y, &z, &count};
    size_t offset, size;

    MUST(cuModuleLoadData(&module, vector_add));
    MUST(cuModuleGetFunction(&function, module, "vector_add"));
    for (size_t i = 0; cuFuncGetParamInfo(function, i, &offset, &size) == CUDA_SUCCESS; i++)
        printf("parameter %zu at %zu, %zu bytes\n", i, offset, size);
    MUST(cuMemAlloc(&x, sizeof(a)));
    MUST(cuMemAlloc(&y, sizeof(b)));
    MUST(cuMemAlloc(&z, sizeof(c)));
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i * 0.5f;
        b[i] = (float)(COUNT - i);
    }
    MUST(cuMemcpyHtoD(x, a, sizeof(a)));
    MUST(cuMemcpyHtoD(y, b, sizeof(b)));
    MUST(cuMemsetD32(z, 0, COUNT));
    MUST(cuLaunchKernel(function, (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuMemcpyDtoH(c, z, sizeof(c)));
    for (int i = 0; i < COUNT; i++)
        CHECK(c[i] == a[i] + b[i]);
    printf("vector_add: %016llx\n", (unsigned long long)checksum(c, sizeof(c)));

    /* The same with packed parameters. */
    struct {
        CUdeviceptr x, y, z;
        int count;
    } packed = {x, y, z, COUNT / 2};
    /* Without the padding at the end: NVIDIA's driver takes only the size that the parameters have. */
    size_t bytes = (size_t)((char *)(&packed.count + 1) - (char *)&packed);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    MUST(cuMemsetD32(z, 0, COUNT));
    MUST(cuLaunchKernel(function, (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(c, z, sizeof(c)));
    CHECK(c[COUNT / 2 - 1] == a[COUNT / 2 - 1] + b[COUNT / 2 - 1] && c[COUNT / 2] == 0);
    printf("packed parameters: %016llx\n", (unsigned long long)checksum(c, sizeof(c)));
    MUST(cuMemFree(x));
    MUST(cuMemFree(y));
    MUST(cuMemFree(z));
    MUST(cuModuleUnload(module));
}

/* As NCCL launches: fewer bytes than the kernel's parameters have, if it does not read the others. */
static void first_bytes(void)
{
    static const char image[] = PTX_HEADER
        ".visible .entry first_bytes(\n"
        "    .param .align 8 .b8 first_bytes_param_0[4096]\n"
        ")\n"
        "{\n" PTX_REGISTERS
        "ld.param.u64 %rd1, [first_bytes_param_0];\n"
        "ld.param.u32 %r1, [first_bytes_param_0+8];\n"
        "cvta.to.global.u64 %rd2, %rd1;\n"
        "st.global.u32 [%rd2], %r1;\n"
        "ret;\n"
        "}\n";
    struct {
        CUdeviceptr to;
        unsigned value, unused;
    } packed = {.value = 0};
    size_t bytes = sizeof(packed);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CUmodule module;
    CUfunction function;
    unsigned value;

    MUST(cuModuleLoadData(&module, image));
    MUST(cuModuleGetFunction(&function, module, "first_bytes"));
    MUST(cuMemAlloc(&packed.to, sizeof(value)));
    for (packed.value = 1; packed.value <= 5; packed.value++) {
        MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
        MUST(cuMemcpyDtoH(&value, packed.to, sizeof(value)));
        CHECK(value == packed.value);
    }
    MUST(cuMemFree(packed.to));
    MUST(cuModuleUnload(module));
    puts("the first bytes of the parameters");
}

static void several_kernels(void)
{
    CUlibrary library;
    CUkernel kernels[8], saxpy, fill, count;
    CUdeviceptr x, y, counter;
    CUstream stream;
    unsigned number, value, start = 5, length = COUNT;
    size_t size;
    float factor = 2.5f;
    void *saxpy_parameters[] = {&factor, &x, &y, &length}, *fill_parameters[] = {&x, &start, &length};
    int threads;

    MUST(cuLibraryLoadData(&library, several, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernelCount(&number, library));
    MUST(cuLibraryEnumerateKernels(kernels, number, library));
    for (unsigned i = 0; i < number; i++) {
        const char *name;
        MUST(cuKernelGetName(&name, kernels[i]));
        printf("kernel %s\n", name);
    }
    MUST(cuLibraryGetKernel(&saxpy, library, "saxpy"));
    MUST(cuLibraryGetKernel(&fill, library, "fill"));
    MUST(cuLibraryGetKernel(&count, library, "count"));
    MUST(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, fill, 0));
    printf("fill takes %d threads\n", threads);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&x, sizeof(a)));
    MUST(cuMemAlloc(&y, sizeof(a)));

    /* A kernel stands for its function. */
    MUST(cuLaunchKernel((CUfunction)fill, 4, 1, 1, 64, 1, 1, 0, stream, fill_parameters, NULL));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(a, x, sizeof(a)));
    printf("fill: %016llx\n", (unsigned long long)checksum(a, sizeof(a)));
    TELL(cuLaunchKernel((CUfunction)fill, 1, 1, 1, 512, 1, 1, 0, stream, fill_parameters, NULL));

    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)(i % 100);
        b[i] = (float)(i % 7);
    }
    MUST(cuMemcpyHtoD(x, a, sizeof(a)));
    MUST(cuMemcpyHtoD(y, b, sizeof(b)));
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = -1};
    CUlaunchConfig config = {.gridDimX = (COUNT + 127) / 128, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1,
                             .blockDimZ = 1, .hStream = stream, .attrs = &attribute, .numAttrs = 1};
    CUfunction function;
    MUST(cuKernelGetFunction(&function, saxpy));
    MUST(cuLaunchKernelEx(&config, function, saxpy_parameters, NULL));
    MUST(cuMemcpyDtoHAsync(c, y, sizeof(c), stream));
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < COUNT; i++)
        CHECK(c[i] == factor * a[i] + b[i]);
    printf("saxpy: %016llx\n", (unsigned long long)checksum(c, sizeof(c)));

    MUST(cuLibraryGetGlobal(&counter, &size, library, "counter"));
    MUST(cuMemcpyDtoH(&value, counter, size));
    printf("counter: %zu bytes, at first %u\n", size, value);
    MUST(cuLaunchCooperativeKernel((CUfunction)count, 5, 1, 1, 33, 1, 1, 0, stream, NULL));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(&value, counter, sizeof(value)));
    printf("counted: %u\n", value);
    MUST(cuLibraryGetGlobal(&counter, &size, library, "factors"));
    float factors[4];
    CHECK(size == sizeof(factors));
    MUST(cuMemcpyDtoH(factors, counter, size));
    printf("factors: %g %g %g %g\n", factors[0], factors[1], factors[2], factors[3]);
    MUST(cuMemFree(x));
    MUST(cuMemFree(y));
    MUST(cuStreamDestroy(stream));
    MUST(cuLibraryUnload(library));
}

int main(void)
{
    CUcontext context = start();

    add();
    first_bytes();
    several_kernels();
    MUST(cuCtxDestroy(context));
    puts("ok vectors");
    return 0;
}
