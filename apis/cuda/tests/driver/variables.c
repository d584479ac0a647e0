/* Managed variables of modules: the CPU and kernels use them at one address. */
#include "common.h"

static const char text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 plain = 9;\n"
    ".visible .global .attribute(.managed) .align 4 .u32 value = 5;\n"
    ".visible .global .attribute(.managed) .align 4 .u32 factor = 3;\n"
    ".visible .global .attribute(.managed) .align 4 .u32 table[2000];\n"
    /* value += n; table[thread] = value * thread * factor */
    ".visible .entry step(.param .u32 n)\n{\n .reg .b64 %rd<6>; .reg .b32 %r<10>; .reg .pred %p<2>;\n"
    " mov.u64 %rd1, value; mov.u64 %rd2, factor; mov.u64 %rd3, table; mov.u32 %r1, %tid.x; ld.param.u32 %r2, [n];\n"
    " ld.global.u32 %r3, [%rd1]; add.u32 %r3, %r3, %r2; bar.sync 0;\n"
    " setp.ne.u32 %p1, %r1, 0; @%p1 bra MORE; st.global.u32 [%rd1], %r3;\nMORE:\n"
    " ld.global.u32 %r4, [%rd2]; mul.lo.u32 %r5, %r3, %r1; mul.lo.u32 %r5, %r5, %r4;\n"
    " mul.wide.u32 %rd4, %r1, 4; add.u64 %rd5, %rd3, %rd4; st.global.u32 [%rd5], %r5; ret;\n}\n"
    /* *to = *from + 1, through pointers */
    ".visible .entry pass(.param .u64 to, .param .u64 from)\n{\n .reg .b64 %rd<3>; .reg .b32 %r<2>;\n"
    " ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; ld.global.u32 %r1, [%rd2]; add.u32 %r1, %r1, 1;\n"
    " st.global.u32 [%rd1], %r1; ret;\n}\n";

enum { THREADS = 256 };

struct variables {
    volatile uint32_t *value, *factor, *table;
    CUfunction step, pass;
};

static volatile uint32_t *managed(CUlibrary library, const char *name, size_t size)
{
    CUdeviceptr pointer;
    size_t bytes;

    MUST(cuLibraryGetManaged(&pointer, &bytes, library, name));
    CHECK(bytes == size);
    return (volatile uint32_t *)(uintptr_t)pointer;
}

static void step(const struct variables *v, uint32_t n, CUstream stream)
{
    void *parameters[] = {&n};

    MUST(cuLaunchKernel(v->step, 1, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
}

static void tell(const char *when, const struct variables *v)
{
    printf("%s: value %u, factor %u, table %u %u %u\n", when, *v->value, *v->factor, v->table[1], v->table[255], v->table[1999]);
}

static void both_sides(const struct variables *v)
{
    tell("at first", v);
    step(v, 1, NULL);
    MUST(cuCtxSynchronize());
    tell("after a kernel", v);
    *v->value = 100;
    v->table[1999] = 7;
    step(v, 2, NULL);
    MUST(cuStreamSynchronize(NULL));
    tell("after writing", v);
    /* One writes one thing, the other another, at the same time. */
    step(v, 3, NULL);
    v->table[1998] = 8;
    MUST(cuCtxSynchronize());
    tell("after both", v);
    *v->factor = 10;
    step(v, 0, NULL);
    MUST(cuCtxSynchronize());
    tell("with the new factor", v);
    CHECK(v->table[1998] == 8 && v->table[1999] == 7);
}

static void pointers_and_copies(const struct variables *v)
{
    CUdeviceptr value = (CUdeviceptr)(uintptr_t)v->value, factor = (CUdeviceptr)(uintptr_t)v->factor;
    CUdeviceptr device, base;
    unsigned is_managed = 0, type = 0;
    void *host = NULL, *parameters[] = {&factor, &value};
    uint32_t copied = 0, other = 55;
    size_t bytes;

    MUST(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, value));
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, value));
    MUST(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, value));
    printf("managed %u, type %u, %s\n", is_managed, type, host == (void *)(uintptr_t)value ? "one address" : "two addresses");
    MUST(cuLaunchKernel(v->pass, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuCtxSynchronize());
    tell("through pointers", v);
    *v->value = 31;
    MUST(cuMemcpyDtoH(&copied, value, sizeof(copied)));
    MUST(cuMemcpyHtoD(factor, &other, sizeof(other)));
    printf("copied %u, ", copied);
    tell("after copies", v);
    MUST(cuMemAlloc(&device, 64));
    MUST(cuMemcpy(device, value, 4));
    MUST(cuMemsetD32(device + 4, 77, 1));
    MUST(cuMemcpy(value, device + 4, 4));
    MUST(cuMemcpyDtoH(&copied, device, 4));
    printf("copied %u, ", copied);
    tell("after copies that say nothing of kinds", v);
    MUST(cuMemFree(device));
    MUST(cuMemGetAddressRange(&base, &bytes, value));
    CHECK(base <= value && value + 4 <= base + bytes);
}

static void graphs(const struct variables *v)
{
    CUgraph graph;
    CUgraphExec executable;
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    step(v, 1, stream);
    step(v, 2, stream);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int round = 0; round < 3; round++) {
        *v->value = 1000 * (uint32_t)round;
        MUST(cuGraphLaunch(executable, stream));
        MUST(cuStreamSynchronize(stream));
        tell("after a graph", v);
    }
    MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamDestroy(stream));
}

/* The same text again, as a module: its variables are others. */
static void in_a_module(void)
{
    CUmodule module;
    CUdeviceptr pointer;
    CUfunction function;
    size_t bytes;
    uint32_t n = 4;
    void *parameters[] = {&n};

    MUST(cuModuleLoadData(&module, text));
    MUST(cuModuleGetGlobal(&pointer, &bytes, module, "value"));
    MUST(cuModuleGetFunction(&function, module, "step"));
    printf("in a module: %u, %zu bytes, ", *(volatile uint32_t *)(uintptr_t)pointer, bytes);
    MUST(cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuCtxSynchronize());
    printf("then %u\n", *(volatile uint32_t *)(uintptr_t)pointer);
    MUST(cuModuleUnload(module));
}

int main(void)
{
    struct variables v;
    CUlibrary library;
    CUmodule module;
    CUcontext context;
    CUdevice device;
    CUdeviceptr pointer;
    size_t bytes;

    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    v.value = managed(library, "value", 4);
    v.factor = managed(library, "factor", 4);
    v.table = managed(library, "table", 8000);
    MUST(cuLibraryGetModule(&module, library));
    MUST(cuModuleGetFunction(&v.step, module, "step"));
    MUST(cuModuleGetFunction(&v.pass, module, "pass"));
    TELL(cuLibraryGetManaged(&pointer, &bytes, library, "plain"));
    TELL(cuLibraryGetManaged(&pointer, &bytes, library, "nothing"));
    both_sides(&v);
    *v.value = 1;
    MUST(cuModuleGetGlobal(&pointer, &bytes, module, "value"));
    printf("by the module's name: %s, %u\n", pointer == (CUdeviceptr)(uintptr_t)v.value ? "the same" : "another", *v.value);
    pointers_and_copies(&v);
    graphs(&v);
    in_a_module();
    tell("afterwards", &v);
    MUST(cuLibraryUnload(library));
    MUST(cuDevicePrimaryCtxRelease(device));
    return 0;
}
