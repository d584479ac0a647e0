/* Output of kernels is there when the host has waited for them, in any thread and in any way: the program's own lines stand behind
 * it. Each part is a process of its own that has first waited for kernels that do not print: how it waits then may depend on what
 * was launched before. */
#include "common.h"
#include "kernels.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Kernels ---------------------------------------------------------------------------------- */

/* As nvcc declares and calls it: parameters are variables of the caller, and the format is in global memory. */
#define DECLARE_PRINT                                                                                         \
    ".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 vprintf_param_0,\n.param .b64 vprintf_param_1\n)\n;\n"
#define CALL_PRINT(FORMAT, ARGUMENTS, RESULT)                                                                 \
    "{ // callseq 0, 0\n.reg .b32 temp_param_reg;\n.param .b64 param0;\nst.param.b64 [param0+0], " FORMAT ";\n"        \
    ".param .b64 param1;\nst.param.b64 [param1+0], " ARGUMENTS ";\n.param .b32 retval0;\n"                    \
    "call.uni (retval0), \nvprintf, \n(\nparam0, \nparam1\n);\nld.param.b32 " RESULT ", [retval0+0];\n} // callseq 0\n"

/* Counts its threads. */
static const char quiet_kernels[] = PTX_HEADER
    ".visible .entry add(.param .u64 p0)\n"
    "{\n" PTX_REGISTERS
    "ld.param.u64 %rd1, [p0];\n"
    "red.global.add.u32 [%rd1], 1;\n"
    "ret;\n"
    "}\n";

/* The format of `say`. */
static const char format[] = "kernel %d, thread %d of %lld: %s %.3f\n", word[] = "prints";

static const char loud_kernels[] =
    /* A number, and what else there is to be told. */
    ".visible .entry say(.param .u32 p0)\n"
    "{\n.local .align 8 .b8 __local_depot0[32];\n.reg .b64 %SP;\n.reg .b64 %SPL;\n" PTX_REGISTERS
    "mov.u64 %SPL, __local_depot0;\n"
    "cvta.local.u64 %SP, %SPL;\n"
    "ld.param.u32 %r1, [p0];\n"
    "add.u64 %rd1, %SP, 0;\n"
    "add.u64 %rd2, %SPL, 0;\n"
    "mov.u32 %r2, %tid.x;\n"
    "mov.u32 %r3, %ntid.x;\n"
    "cvt.u64.u32 %rd3, %r3;\n"
    "mov.u64 %rd4, $word;\n"
    "cvta.global.u64 %rd5, %rd4;\n"
    "mov.u64 %rd6, 0d3FF8000000000000;\n"
    "st.local.v2.u32 [%rd2], {%r1, %r2};\n"
    "st.local.u64 [%rd2+8], %rd3;\n"
    "st.local.u64 [%rd2+16], %rd5;\n"
    "st.local.u64 [%rd2+24], %rd6;\n"
    "mov.u64 %rd7, $format;\n"
    "cvta.global.u64 %rd8, %rd7;\n" CALL_PRINT("%rd8", "%rd1", "%r5")
    "ret;\n"
    "}\n"
    /* Prints what it is given, and stores what printf returned. */
    ".visible .entry print(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n"
    "{\n" PTX_REGISTERS
    "ld.param.u64 %rd1, [p0];\n"
    "ld.param.u64 %rd2, [p1];\n"
    "ld.param.u64 %rd3, [p2];\n" CALL_PRINT("%rd1", "%rd2", "%r1")
    "st.global.u32 [%rd3], %r1;\n"
    "ret;\n"
    "}\n"
    /* Would print if its number were zero. */
    ".visible .entry never(.param .u32 p0)\n"
    "{\n" PTX_REGISTERS
    "ld.param.u32 %r1, [p0];\n"
    "setp.ne.u32 %p1, %r1, 0;\n"
    "@%p1 bra DONE;\n"
    "mov.u64 %rd1, $word;\n"
    "cvta.global.u64 %rd2, %rd1;\n"
    "mov.u64 %rd3, 0;\n" CALL_PRINT("%rd2", "%rd3", "%r2")
    "DONE: ret;\n"
    "}\n"
    /* Asserts that its number is zero. */
    ".visible .entry demand(.param .u32 p0)\n"
    "{\n" PTX_REGISTERS
    "ld.param.u32 %r1, [p0];\n"
    "setp.eq.u32 %p1, %r1, 0;\n"
    "@%p1 bra DONE;\n"
    "mov.u64 %rd1, $word;\n"
    "cvta.global.u64 %rd2, %rd1;\n"
    "{\n.param .b64 param0;\nst.param.b64 [param0+0], %rd2;\n.param .b64 param1;\nst.param.b64 [param1+0], %rd2;\n"
    ".param .b32 param2;\nst.param.b32 [param2+0], 17;\n.param .b64 param3;\nst.param.b64 [param3+0], %rd2;\n"
    ".param .b64 param4;\nst.param.b64 [param4+0], 1;\n"
    "call.uni __assertfail, (param0, param1, param2, param3, param4);\n}\n"
    "DONE: ret;\n"
    "}\n";

static size_t declare_string(char *to, size_t room, const char *name, const char *text)
{
    size_t length = (size_t)snprintf(to, room, ".global .align 1 .b8 %s[%zu] = {", name, strlen(text) + 1);

    for (;; text++) {
        length += (size_t)snprintf(to + length, room - length, "%d%s", *text, *text ? ", " : "};\n");
        if (!*text)
            return length;
    }
}

static const char *loud_module(void)
{
    static char text[16384];
    size_t length = (size_t)snprintf(text, sizeof(text), "%s%s%s", PTX_HEADER, DECLARE_PRINT,
                                     ".extern .func __assertfail\n(\n.param .b64 p0,\n.param .b64 p1,\n.param .b32 p2,\n.param .b64 p3,\n"
                                     ".param .b64 p4\n)\n;\n");

    length += declare_string(text + length, sizeof(text) - length, "$format", format);
    length += declare_string(text + length, sizeof(text) - length, "$word", word);
    CHECK(length + sizeof(loud_kernels) <= sizeof(text));
    strcpy(text + length, loud_kernels);
    return text;
}

/* ---- What each part has ----------------------------------------------------------------------- */

enum { LARGE = 3 << 20 };

struct world {
    CUcontext context;
    CUstream stream, other; /* the default stream waits for both */
    CUevent event;
    CUdeviceptr memory; /* LARGE bytes */
    char *pinned, *pageable;
    CUmodule module, spare;
    CUfunction add, say;
    CUgraphExec graph;
};

static struct world world;

static void launch_quiet(CUstream stream)
{
    void *parameters[] = {&world.memory};

    MUST(cuLaunchKernel(world.add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void prepare(void)
{
    CUmodule quiet;

    world.context = start();
    MUST(cuStreamCreate(&world.stream, CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&world.other, CU_STREAM_DEFAULT));
    MUST(cuEventCreate(&world.event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc(&world.memory, LARGE));
    MUST(cuMemAllocHost((void **)&world.pinned, LARGE));
    world.pageable = malloc(LARGE);
    memset(world.pageable, 0, LARGE);
    memset(world.pinned, 0, LARGE);
    MUST(cuModuleLoadData(&quiet, quiet_kernels));
    MUST(cuModuleGetFunction(&world.add, quiet, "add"));
    MUST(cuModuleLoadData(&world.module, loud_module()));
    MUST(cuModuleGetFunction(&world.say, world.module, "say"));
    for (int i = 0; i < 20; i++) {
        launch_quiet(i % 2 ? world.stream : world.other);
        MUST(i % 3 ? cuStreamSynchronize(i % 2 ? world.stream : world.other) : cuCtxSynchronize());
    }
}

/* ---- Ways of launching ------------------------------------------------------------------------ */

static void launch_plainly(int number)
{
    void *parameters[] = {&number};

    MUST(cuLaunchKernel(world.say, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters, NULL));
}

static void launch_extended(int number)
{
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = world.stream};
    void *parameters[] = {&number};

    MUST(cuLaunchKernelEx(&config, world.say, parameters, NULL));
}

static void launch_together(int number)
{
    void *parameters[] = {&number};

    MUST(cuLaunchCooperativeKernel(world.say, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters));
}

static void launch_graph(int number)
{
    if (!world.graph) {
        void *parameters[] = {&number};
        CUDA_KERNEL_NODE_PARAMS node = {.func = world.say, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                                        .blockDimZ = 1, .kernelParams = parameters};
        CUgraphNode added;
        CUgraph graph;

        MUST(cuGraphCreate(&graph, 0));
        MUST(cuGraphAddKernelNode(&added, graph, NULL, 0, &node));
        MUST(cuGraphInstantiate(&world.graph, graph, 0));
    }
    MUST(cuGraphLaunch(world.graph, world.stream));
}

static void launch_captured(int number)
{
    if (!world.graph) {
        CUgraph graph;

        MUST(cuStreamBeginCapture(world.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        launch_plainly(number);
        MUST(cuStreamEndCapture(world.stream, &graph));
        MUST(cuGraphInstantiate(&world.graph, graph, 0));
        /* Others wait meanwhile, and nothing was printed. */
        launch_quiet(world.other);
        MUST(cuStreamSynchronize(world.other));
    }
    MUST(cuGraphLaunch(world.graph, world.stream));
}

/* ---- Ways of waiting -------------------------------------------------------------------------- */

static void wait_context(void) { MUST(cuCtxSynchronize()); }
static void wait_stream(void) { MUST(cuStreamSynchronize(world.stream)); }
static void wait_default_stream(void) { MUST(cuStreamSynchronize(NULL)); }

static void wait_event(void)
{
    MUST(cuEventRecord(world.event, world.stream));
    MUST(cuEventSynchronize(world.event));
}

/* Until all is done; asking writes nothing. */
static void ask(void)
{
    MUST(cuEventRecord(world.event, world.stream));
    while (cuEventQuery(world.event) == CUDA_ERROR_NOT_READY)
        usleep(100);
}

static void wait_known_event(void)
{
    ask();
    MUST(cuEventSynchronize(world.event));
}

static void wait_copy_out(void) { MUST(cuMemcpyDtoH(world.pageable, world.memory, 4)); }
static void wait_copy_in(void) { MUST(cuMemcpyHtoD(world.memory, world.pageable, 4)); }
static void wait_pinned_out(void) { MUST(cuMemcpyDtoH(world.pinned, world.memory, 4096)); }
static void wait_pinned_in(void) { MUST(cuMemcpyHtoD(world.memory, world.pinned, 4096)); }
static void wait_medium_out(void) { MUST(cuMemcpyDtoH(world.pageable, world.memory, 200000)); }
static void wait_medium_in(void) { MUST(cuMemcpyHtoD(world.memory, world.pageable, 200000)); }
static void wait_large_out(void) { MUST(cuMemcpyDtoH(world.pageable, world.memory, LARGE)); }
static void wait_large_in(void) { MUST(cuMemcpyHtoD(world.memory, world.pageable, LARGE)); }
static void wait_unified(void) { MUST(cuMemcpy((CUdeviceptr)(uintptr_t)world.pageable, world.memory, 4)); }

static void wait_lines(void)
{
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = world.memory, .srcPitch = 64, .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = world.pageable, .dstPitch = 32, .WidthInBytes = 16, .Height = 4};

    MUST(cuMemcpy2D(&copy));
}

/* Calls that do not wait but write earlier output. */
static void load_module(void)
{
    ask();
    MUST(cuModuleLoadData(&world.spare, quiet_kernels));
}

static void unload_module(void)
{
    if (!world.spare)
        MUST(cuModuleLoadData(&world.spare, quiet_kernels));
    ask();
    MUST(cuModuleUnload(world.spare));
    world.spare = NULL;
}

static void CUDA_CB called(CUstream stream, CUresult status, void *data)
{
    (void)stream;
    (void)data;
    printf("-- called: %s\n", error_name(status));
}

static void call_back(void)
{
    MUST(cuStreamAddCallback(world.stream, called, NULL, 0));
    MUST(cuStreamSynchronize(world.stream));
}

/* ---- Parts ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    void (*launch)(int number);
} launches[] = {{"launched", launch_plainly},
                {"in a graph", launch_graph},
                {"with attributes", launch_extended},
                {"together", launch_together},
                {"captured", launch_captured}};
enum { LAUNCHES = sizeof(launches) / sizeof(launches[0]) };

static const struct {
    const char *name;
    void (*wait)(void);
} waits[] = {
    {"context", wait_context},        {"stream", wait_stream},          {"default stream", wait_default_stream},
    {"event", wait_event},            {"known event", wait_known_event}, {"copy out", wait_copy_out},
    {"copy in", wait_copy_in},        {"page-locked out", wait_pinned_out}, {"page-locked in", wait_pinned_in},
    {"medium out", wait_medium_out},  {"medium in", wait_medium_in},    {"large out", wait_large_out},
    {"large in", wait_large_in},      {"unified", wait_unified},        {"lines", wait_lines},
    {"module loaded", load_module},   {"module unloaded", unload_module}, {"callback", call_back},
};
enum { CONTEXT = 0, COPY_OUT = 5, WAITS = sizeof(waits) / sizeof(waits[0]) };

static void waited(int launch, int wait)
{
    printf("== %s: %s\n", launches[launch].name, waits[wait].name);
    prepare();
    for (int i = 0; i < 3; i++) {
        launch_quiet(world.stream);
        waits[wait].wait();
    }
    printf("-- nothing\n");
    for (int i = 1; i <= 2; i++) {
        launches[launch].launch(i);
        waits[wait].wait();
        printf("-- once\n");
        launches[launch].launch(i);
        launch_quiet(world.other);
        launches[launch].launch(i);
        launch_quiet(world.stream);
        waits[wait].wait();
        printf("-- twice\n");
        for (int j = 0; j < 3; j++) {
            launch_quiet(world.stream);
            waits[wait].wait();
        }
        printf("-- nothing\n");
    }
    MUST(cuCtxDestroy(world.context));
}

/* All that was launched, by somebody who may have launched nothing since he waited last. */
static void wait_for_all(int by_copying)
{
    if (!by_copying)
        launch_quiet(world.other);
    waits[by_copying ? COPY_OUT : CONTEXT].wait();
    printf("-- returned\n");
}

/* A wait for another stream says nothing of this one. */
static void elsewhere(int which)
{
    int launch = which / 2, by_copying = which % 2;

    printf("== %s: another stream, then %s\n", launches[launch].name, by_copying ? "a copy" : "all");
    prepare();
    for (int i = 0; i < 8; i++) {
        launches[launch].launch(1);
        MUST(cuStreamSynchronize(world.other));
        wait_for_all(by_copying);
    }
    MUST(cuCtxDestroy(world.context));
}

static int launch_of_thread;

static void *launch_in_thread(void *nothing)
{
    MUST(cuCtxSetCurrent(world.context));
    launches[launch_of_thread].launch(1);
    return nothing;
}

/* One thread launches, another one waits. */
static void in_thread(int which)
{
    int by_copying = which % 2;

    launch_of_thread = which / 2;
    printf("== %s: by another thread, then %s\n", launches[launch_of_thread].name, by_copying ? "a copy" : "all");
    prepare();
    for (int i = 0; i < 8; i++) {
        pthread_t thread;

        CHECK(pthread_create(&thread, NULL, launch_in_thread, NULL) == 0);
        pthread_join(thread, NULL);
        wait_for_all(by_copying);
    }
    MUST(cuCtxDestroy(world.context));
}

static void *launch_and_wait(void *nothing)
{
    int number = 5;
    void *parameters[] = {&number};
    CUstream stream;

    MUST(cuCtxSetCurrent(world.context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 10; i++) {
        MUST(cuLaunchKernel(world.say, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
        MUST(cuStreamSynchronize(stream));
    }
    return nothing;
}

/* Two at once, with the same lines: whose come first is not said. */
static void both(int nothing)
{
    pthread_t threads[2];
    (void)nothing;

    printf("== two threads\n");
    prepare();
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, launch_and_wait, NULL) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("-- returned\n");
    MUST(cuCtxDestroy(world.context));
}

static const char *set_limit(void)
{
    size_t bytes;

    MUST(cuCtxGetLimit(&bytes, CU_LIMIT_PRINTF_FIFO_SIZE));
    return error_name(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, bytes));
}

/* Until when the size of the buffer can be set: a kernel that may print is launched, or a graph has it. */
static void limits(int in_graph)
{
    CUfunction never;
    int attribute, number = 1;
    void *parameters[] = {&number};

    printf("== limits, %s\n", in_graph ? "graphs" : "launches");
    prepare();
    printf("with kernels that do not print: %s\n", set_limit());
    MUST(cuModuleGetFunction(&never, world.module, "never"));
    MUST(cuFuncGetAttribute(&attribute, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, never));
    printf("with one that may, loaded: %s\n", set_limit());
    if (in_graph) {
        CUDA_KERNEL_NODE_PARAMS node = {.func = world.add, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                                        .blockDimZ = 1};
        void *address[] = {&world.memory};
        CUgraphNode added, other;
        CUgraph graph;

        node.kernelParams = address;
        MUST(cuGraphCreate(&graph, 0));
        MUST(cuGraphAddKernelNode(&added, graph, NULL, 0, &node));
        MUST(cuGraphInstantiate(&world.graph, graph, 0));
        MUST(cuGraphLaunch(world.graph, world.stream));
        printf("a graph without it, launched: %s\n", set_limit());
        node.func = never;
        node.kernelParams = parameters;
        MUST(cuGraphAddKernelNode(&other, graph, &added, 1, &node));
        printf("put into a graph: %s\n", set_limit());
        MUST(cuGraphExecKernelNodeSetParams(world.graph, added, &node));
        printf("given to one that is ready: %s\n", set_limit());
        MUST(cuGraphLaunch(world.graph, world.stream));
    } else {
        MUST(cuLaunchKernel(never, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters, NULL));
        printf("launched: %s\n", set_limit());
    }
    MUST(cuCtxSynchronize());
    printf("ended: %s\n", set_limit());
    MUST(cuCtxDestroy(world.context));
}

/* Output that does not fit is lost, the oldest first. */
static void overflow(int nothing)
{
    int number = 1;
    void *parameters[] = {&number};
    (void)nothing;

    printf("== more than there is room for\n");
    prepare();
    MUST(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 256));
    MUST(cuLaunchKernel(world.say, 1, 1, 1, 40, 1, 1, 0, world.stream, parameters, NULL));
    MUST(cuCtxSynchronize());
    printf("-- returned\n");
    MUST(cuCtxDestroy(world.context));
}

/* The end of a context writes what is left, the end of a process does not. */
static void ends(int destroy)
{
    printf("== left when the %s ends\n", destroy ? "context" : "process");
    prepare();
    launch_plainly(1);
    ask();
    if (destroy)
        MUST(cuCtxDestroy(world.context));
    printf("-- ended\n");
    fflush(stdout);
    _exit(0);
}

/* ---- Formats ---------------------------------------------------------------------------------- */

static CUfunction print;
static CUdeviceptr next_string;

static CUdeviceptr put_string(const char *text)
{
    CUdeviceptr at = next_string;

    MUST(cuMemcpyHtoD(at, text, strlen(text) + 1));
    next_string += strlen(text) + 1;
    return at;
}

static void print_packed(const char *text, const void *arguments, size_t size)
{
    CUdeviceptr at, packed = world.memory + LARGE / 2, result = world.memory + 8;
    void *parameters[] = {&at, &packed, &result};
    int returned;

    next_string = next_string ? next_string : world.memory + 1024;
    at = put_string(text);
    if (size)
        MUST(cuMemcpyHtoD(packed, arguments, size));
    MUST(cuLaunchKernel(print, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters, NULL));
    MUST(cuStreamSynchronize(world.stream));
    MUST(cuMemcpyDtoH(&returned, result, 4));
    printf("-- %d\n", returned);
}

static void formats(int nothing)
{
    CUdeviceptr none = 0, packed = 0, result;
    void *parameters[] = {&none, &packed, &result};
    int returned, many[40];
    char all[400] = "";
    (void)nothing;

    printf("== formats\n");
    prepare();
    result = world.memory + 8;
    MUST(cuModuleGetFunction(&print, world.module, "print"));
    print_packed("plain, 100%%, %5%\n", NULL, 0);
    {
        struct { int a; unsigned b; int c, d, e, f; } values = {-1, 4000000000u, 255, 255, 8, 'x'};
        print_packed("%d %u %x %#X %#o %c\n", &values, sizeof(values));
        print_packed("%5d|%-12u|%05x|%+d|% i|%3c|\n", &values, sizeof(values));
        print_packed("%hd %hu %hhx\n", &values, sizeof(values));
    }
    {
        struct { int a; long long b; int c; unsigned long d; } values = {1, -5000000000, 2, 0xffffffffffffffffu};
        print_packed("%d %lld %d %lx\n", &values, sizeof(values));
    }
    {
        struct { int a; double b; int c; double d, e, f; } values = {7, 0.1, 8, 12345.678, -1e-9, 1e300};
        print_packed("%d %f %d %10.2f|%-12.3e|%G\n", &values, sizeof(values));
        print_packed("%d %.0f %d %+A %lf %g\n", &values, sizeof(values));
    }
    {
        struct { int width; int value; int precision; double number; } values = {-6, 42, 2, 3.14159};
        print_packed("%*d|%.*f|\n", &values, sizeof(values));
    }
    {
        struct { CUdeviceptr a, b, c, d; } values;
        next_string += 64;
        values.a = values.b = values.c = put_string("a string");
        values.d = 0x1234;
        print_packed("%s|%10s|%-10.3s|%p\n", &values, sizeof(values));
        values.a = 0;
        print_packed("%s\n", &values, sizeof(values));
    }
    {
        int values[] = {1, 2};
        print_packed("%y %d %n %hld %5.q %d %", values, sizeof(values));
        print_packed("\n", NULL, 0);
    }
    for (int i = 0; i < 40; i++) {
        many[i] = i;
        strcat(all, " %d");
    }
    print_packed(strcat(all, "\n"), many, sizeof(many));
    MUST(cuLaunchKernel(print, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters, NULL));
    MUST(cuStreamSynchronize(world.stream));
    MUST(cuMemcpyDtoH(&returned, result, 4));
    printf("without a format: %d\n", returned);
    MUST(cuCtxDestroy(world.context));
}

/* Addresses that are none end the kernel. */
static void wild(int which)
{
    static const char *const names[] = {"format", "arguments", "string", "arguments that are not aligned"};
    CUdeviceptr wild = 0x300000000000 + ((CUdeviceptr)1 << 36), at, packed, result;
    void *parameters[] = {&at, &packed, &result};

    printf("== wild %s\n", names[which]);
    prepare();
    MUST(cuModuleGetFunction(&print, world.module, "print"));
    next_string = world.memory + 1024;
    result = world.memory + 8;
    at = which == 0 ? wild : put_string("%s\n");
    packed = which == 1 ? wild : world.memory + 16 + (which == 3);
    MUST(cuMemcpyHtoD(world.memory + 16, &wild, sizeof(wild)));
    MUST(cuLaunchKernel(print, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters, NULL));
    TELL(cuStreamSynchronize(world.stream));
    TELL(cuCtxSynchronize());
}

static void asserted(int nothing)
{
    CUfunction demand;
    int number = 0;
    void *parameters[] = {&number};
    (void)nothing;

    printf("== assert\n");
    fflush(stdout);
    /* Assertions write to standard error. */
    CHECK(dup2(1, 2) == 2);
    prepare();
    MUST(cuModuleGetFunction(&demand, world.module, "demand"));
    MUST(cuLaunchKernel(demand, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters, NULL));
    TELL(cuCtxSynchronize());
    number = 1;
    MUST(cuLaunchKernel(demand, 1, 1, 1, 1, 1, 1, 0, world.stream, parameters, NULL));
    TELL(cuCtxSynchronize());
    TELL(cuStreamSynchronize(world.stream));
}

/* The program leads its descriptor elsewhere between two kernels that print: into a file, then into a pipe, whose reader is told
 * of the end. */
static void say(int number)
{
    launch_plainly(number);
    MUST(cuStreamSynchronize(world.stream));
    fflush(stdout);
}

static void show(const char *where, int file)
{
    char text[512];
    ssize_t length = read(file, text, sizeof(text) - 1);

    text[length > 0 ? length : 0] = 0;
    printf("%s: %s", where, text);
    fflush(stdout);
}

static void redirected(int nothing)
{
    int own, ends[2];
    FILE *file = tmpfile();
    char more;
    (void)nothing;

    printf("== redirected\n");
    fflush(stdout);
    prepare();
    say(1);
    own = dup(1);
    CHECK(file && own > 2 && dup2(fileno(file), 1) == 1);
    say(2);
    CHECK(dup2(own, 1) == 1 && lseek(fileno(file), 0, SEEK_SET) == 0);
    show("in a file", fileno(file));
    CHECK(pipe(ends) == 0 && dup2(ends[1], 1) == 1 && close(ends[1]) == 0);
    say(3);
    CHECK(dup2(own, 1) == 1);
    show("in a pipe", ends[0]);
    printf("then %zd\n", read(ends[0], &more, 1));
    fflush(stdout);
    say(4);
}

/* ---- All -------------------------------------------------------------------------------------- */

static void part(void (*run)(int), int argument)
{
    int status;
    pid_t child;

    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        run(argument);
        fflush(stdout);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (status)
        printf("FAIL status %d\n", status);
}

static void wait_for(int which) { waited(which / WAITS, which % WAITS); }

int main(void)
{
    part(limits, false);
    part(limits, true);
    for (int wait = 0; wait < WAITS; wait++)
        for (int launch = 0; launch < 2; launch++)
            part(wait_for, launch * WAITS + wait);
    for (int launch = 2; launch < LAUNCHES; launch++)
        part(wait_for, launch * WAITS);
    for (int which = 0; which < 2 * LAUNCHES; which++) {
        part(elsewhere, which);
        part(in_thread, which);
    }
    part(both, 0);
    part(overflow, 0);
    part(ends, true);
    part(ends, false);
    part(formats, 0);
    for (int which = 0; which < 4; which++)
        part(wild, which);
    part(asserted, 0);
    part(redirected, 0);
    puts("ok printing");
    return 0;
}
