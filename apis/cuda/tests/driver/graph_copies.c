/* Copies of ordinary memory in graphs: captured and as nodes. Each launch copies what the application's memory holds then. */
#include "common.h"
#include "kernels.h"

enum { COUNT = 5000 };
/* Adds a number to each word. */
static const char adding[] = PTX_HEADER
    ".visible .entry add(.param .u64 p0, .param .u32 p1, .param .u32 p2)\n"
    "{\n" PTX_REGISTERS
    "ld.param.u64 %rd1, [p0];\n"
    "ld.param.u32 %r5, [p1];\n"
    "ld.param.u32 %r6, [p2];\n" PTX_INDEX
    "setp.ge.u32 %p1, %r4, %r6;\n"
    "@%p1 bra DONE;\n"
    "mad.wide.u32 %rd2, %r4, 4, %rd1;\n"
    "ld.global.u32 %r7, [%rd2];\n"
    "add.u32 %r7, %r7, %r5;\n"
    "st.global.u32 [%rd2], %r7;\n"
    "DONE: ret;\n"
    "}\n";
static unsigned *input, *output;
static CUfunction add;
static CUcontext context;
static int calls;

static void count_calls(void *data) { calls += *(int *)data; }

static void number(unsigned first)
{
    for (unsigned i = 0; i < COUNT; i++)
        input[i] = first + i;
}

static void show(const char *what, const unsigned *memory)
{
    printf("%s: %u %u, sum %016lx\n", what, memory[0], memory[COUNT - 1], (unsigned long)checksum(memory, COUNT * 4));
}

/* The types of a graph's nodes, its edges by the nodes' places, and its roots. */
static void describe(CUgraph graph)
{
    CUgraphNode nodes[16], from[32], to[32], some[16];
    size_t count = 16, edges = 32, roots = 16, all;

    MUST(cuGraphGetNodes(graph, NULL, &all));
    MUST(cuGraphGetNodes(graph, nodes, &count));
    printf("%zu nodes:", all);
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        size_t before = 16, after = 16;
        MUST(cuGraphNodeGetType(nodes[i], &type));
        MUST(cuGraphNodeGetDependencies(nodes[i], some, NULL, &before));
        for (size_t j = 0; j < before; j++) {
            bool known = false;
            for (size_t k = 0; k < count; k++)
                known |= some[j] == nodes[k];
            CHECK(known);
        }
        MUST(cuGraphNodeGetDependentNodes(nodes[i], some, NULL, &after));
        for (size_t j = 0; j < after; j++) {
            bool known = false;
            for (size_t k = 0; k < count; k++)
                known |= some[j] == nodes[k];
            CHECK(known);
        }
        printf(" type %d (%zu before, %zu after)", type, before, after);
    }
    MUST(cuGraphGetEdges(graph, from, to, NULL, &edges));
    MUST(cuGraphGetRootNodes(graph, NULL, &all));
    MUST(cuGraphGetRootNodes(graph, some, &roots));
    printf("; %zu edges, %zu roots, of type", edges, all);
    for (size_t i = 0; i < edges; i++)
        for (size_t j = 0; j < count; j++)
            CHECK(from[i] != to[i]);
    for (size_t i = 0; i < roots; i++) {
        CUgraphNodeType type;
        MUST(cuGraphNodeGetType(some[i], &type));
        printf(" %d", type);
    }
    puts("");
}

static CUgraph capture(CUstream stream, CUdeviceptr x, unsigned first)
{
    static unsigned length = COUNT;
    void *parameters[] = {&x, &first, &length};
    CUgraph graph;

    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuMemcpyHtoDAsync(x, input, COUNT * 4, stream));
    MUST(cuLaunchKernel(add, 20, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
    MUST(cuMemcpyDtoHAsync(output, x, COUNT * 4, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void captured(CUstream stream, CUdeviceptr x)
{
    CUgraph graph, again;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo information;

    graph = capture(stream, x, 7);
    describe(graph);
    show("nothing has run", output);
    MUST(cuGraphInstantiate(&exec, graph, 0));
    for (unsigned i = 0; i < 3; i++) {
        number(1000 * i);
        memset(output, 0, COUNT * 4);
        MUST(cuGraphLaunch(exec, stream));
        MUST(cuStreamSynchronize(stream));
        show("launched", output);
    }
    MUST(cuGraphDestroy(graph));
    number(50000);
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    show("without its graph", output);
    /* The same work captured anew: as programs do that update what they have. */
    again = capture(stream, x, 100);
    MUST(cuGraphExecUpdate(exec, again, &information));
    printf("updated: %d\n", information.result);
    MUST(cuGraphDestroy(again));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    show("updated", output);
    MUST(cuGraphExecDestroy(exec));
}

/* A number on the stack, a box of a picture, and memory of the host's on both sides. */
static void unusual(CUstream stream, CUdeviceptr x)
{
    double result = 0, five = 5;
    unsigned char picture[16][32], other[16][32];
    CUgraph graph;
    CUgraphExec exec;
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = picture, .srcPitch = 32, .srcXInBytes = 3, .srcY = 2,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = x, .dstPitch = 64, .WidthInBytes = 10, .Height = 5};
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = x, .srcPitch = 64,
                         .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = other, .dstPitch = 32, .dstXInBytes = 7, .dstY = 1,
                         .WidthInBytes = 10, .Height = 5};

    fill_bytes(picture, sizeof(picture), 3);
    memset(other, 9, sizeof(other));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemcpy2DAsync(&in, stream));
    MUST(cuMemcpy2DAsync(&out, stream));
    MUST(cuMemcpyHtoDAsync(x + 4096, &five, sizeof(five), stream));
    MUST(cuMemcpyDtoHAsync(&result, x + 4096, sizeof(result), stream));
    MUST(cuMemcpyAsync((CUdeviceptr)(output + 1), (CUdeviceptr)input, 400, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    describe(graph);
    MUST(cuGraphInstantiate(&exec, graph, 0));
    printf("%g\n", result);
    five = 25;
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    printf("%g, picture %016lx, others %u %u\n", result, (unsigned long)checksum(other, sizeof(other)), output[1], output[100]);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static CUDA_MEMCPY3D line(void *to, CUdeviceptr to_device, const void *from, CUdeviceptr from_device)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = from ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, .srcHost = from,
                           .srcDevice = from_device, .dstMemoryType = to ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                           .dstHost = to, .dstDevice = to_device, .WidthInBytes = COUNT * 4, .Height = 1, .Depth = 1};
}

static void by_nodes(CUstream stream, CUdeviceptr x)
{
    CUDA_MEMCPY3D in = line(NULL, x, input, 0), out = line(output, 0, NULL, x), told;
    static unsigned more[COUNT], elsewhere[COUNT];
    unsigned first = 1, length = COUNT;
    int one = 1;
    void *parameters[] = {&x, &first, &length};
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = add, .gridDimX = 20, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1,
                                      .blockDimZ = 1, .kernelParams = parameters};
    CUDA_HOST_NODE_PARAMS host = {.fn = count_calls, .userData = &one}, found;
    CUgraph graph, clone, whole;
    CUgraphNode copy_in, copy_out, work, called, child, cloned;
    CUgraphExec exec, other;
    unsigned enabled = 9;

    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemcpyNode(&copy_in, graph, NULL, 0, &in, context));
    MUST(cuGraphAddMemcpyNode(&copy_out, graph, NULL, 0, &out, context));
    MUST(cuGraphAddKernelNode(&work, graph, &copy_in, 1, &kernel));
    MUST(cuGraphAddHostNode(&called, graph, &copy_out, 1, &host));
    MUST(cuGraphAddDependencies(graph, &work, &copy_out, NULL, 1));
    describe(graph);
    MUST(cuGraphMemcpyNodeGetParams(copy_in, &told));
    CHECK(told.srcHost == input && told.dstDevice == x && told.WidthInBytes == COUNT * 4);
    MUST(cuGraphMemcpyNodeGetParams(copy_out, &told));
    CHECK(told.dstHost == output && told.srcDevice == x);
    number(1);
    MUST(cuGraphInstantiate(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    show("by nodes", output);

    /* Other memory for the graph, and for what was made of it. */
    in.srcHost = more;
    out.dstHost = elsewhere;
    for (unsigned i = 0; i < COUNT; i++)
        more[i] = 3 * i;
    MUST(cuGraphExecMemcpyNodeSetParams(exec, copy_in, &in, context));
    MUST(cuGraphExecMemcpyNodeSetParams(exec, copy_out, &out, context));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    show("other memory", elsewhere);
    MUST(cuGraphMemcpyNodeGetParams(copy_in, &told));
    CHECK(told.srcHost == input);
    MUST(cuGraphMemcpyNodeSetParams(copy_in, &in));
    MUST(cuGraphMemcpyNodeGetParams(copy_in, &told));
    CHECK(told.srcHost == more);
    memset(elsewhere, 0, sizeof(elsewhere));
    MUST(cuGraphNodeSetEnabled(exec, copy_out, 0));
    MUST(cuGraphNodeGetEnabled(exec, copy_out, &enabled));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    printf("enabled %u: ", enabled);
    show("not copied", elsewhere);
    MUST(cuGraphNodeSetEnabled(exec, copy_out, 1));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    show("copied", elsewhere);
    MUST(cuGraphExecDestroy(exec));

    /* Clones, also inside of other graphs, copy the same memory. */
    MUST(cuGraphClone(&clone, graph));
    describe(clone);
    MUST(cuGraphNodeFindInClone(&cloned, copy_in, clone));
    MUST(cuGraphMemcpyNodeGetParams(cloned, &told));
    CHECK(told.srcHost == more);
    MUST(cuGraphNodeFindInClone(&cloned, called, clone));
    MUST(cuGraphHostNodeGetParams(cloned, &found));
    CHECK(found.fn == count_calls && found.userData == &one);
    MUST(cuGraphCreate(&whole, 0));
    MUST(cuGraphAddChildGraphNode(&child, whole, NULL, 0, clone));
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphDestroy(clone));
    MUST(cuGraphInstantiate(&other, whole, 0));
    MUST(cuGraphDestroy(whole));
    for (unsigned i = 0; i < COUNT; i++)
        more[i] = 11 * i;
    MUST(cuGraphLaunch(other, stream));
    MUST(cuStreamSynchronize(stream));
    show("of a clone", output);
    MUST(cuGraphExecDestroy(other));
    printf("%d calls\n", calls);
}

/* Other memory for an executable graph before each launch, while earlier launches run. */
static void set_often(CUstream stream, CUdeviceptr x)
{
    enum { SETS = 100 };
    static unsigned sources[SETS][COUNT], targets[SETS][COUNT];
    CUDA_MEMCPY3D in = line(NULL, x, sources[0], 0), out = line(targets[0], 0, NULL, x);
    CUgraphNode copy_in, copy_out;
    CUgraph graph;
    CUgraphExec exec;
    unsigned wrong = 0;

    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemcpyNode(&copy_in, graph, NULL, 0, &in, context));
    MUST(cuGraphAddMemcpyNode(&copy_out, graph, &copy_in, 1, &out, context));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    for (unsigned i = 0; i < SETS; i++) {
        for (unsigned j = 0; j < COUNT; j++)
            sources[i][j] = i * 7 + j;
        in.srcHost = sources[i];
        out.dstHost = targets[i];
        MUST(cuGraphExecMemcpyNodeSetParams(exec, copy_in, &in, context));
        MUST(cuGraphExecMemcpyNodeSetParams(exec, copy_out, &out, context));
        MUST(cuGraphLaunch(exec, stream));
    }
    MUST(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < SETS; i++)
        wrong += memcmp(sources[i], targets[i], sizeof(sources[i])) != 0;
    printf("%u of %d launches copied something else\n", wrong, SETS);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

/* Nodes in between, edges taken away, nodes destroyed. */
static void rebuilt(CUdeviceptr x)
{
    CUDA_MEMCPY3D in = line(NULL, x, input, 0), out = line(output, 0, NULL, x);
    CUgraphNode copy_in, copy_out, between;
    CUgraph graph;

    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemcpyNode(&copy_in, graph, NULL, 0, &in, context));
    MUST(cuGraphAddMemcpyNode(&copy_out, graph, &copy_in, 1, &out, context));
    describe(graph);
    MUST(cuGraphAddEmptyNode(&between, graph, &copy_in, 1));
    MUST(cuGraphRemoveDependencies(graph, &copy_in, &copy_out, NULL, 1));
    MUST(cuGraphAddDependencies(graph, &between, &copy_out, NULL, 1));
    describe(graph);
    MUST(cuGraphDestroyNode(copy_out));
    describe(graph);
    MUST(cuGraphDestroyNode(copy_in));
    describe(graph);
    MUST(cuGraphDestroy(graph));
}

/* A captured host function is what it was; what a capture depends on can be told and changed. */
static void within_a_capture(CUstream stream, CUdeviceptr x)
{
    int ten = 10;
    CUgraph graph, part;
    CUgraphNode nodes[8];
    const CUgraphNode *frontier;
    CUgraphNode last;
    CUDA_HOST_NODE_PARAMS found;
    CUstreamCaptureStatus status;
    CUgraphNodeType type;
    cuuint64_t id;
    size_t count = 8, before;

    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(cuLaunchHostFunc(stream, count_calls, &ten));
    MUST(cuMemcpyDtoHAsync(output, x, COUNT * 4, stream));
    MUST(cuStreamGetCaptureInfo(stream, &status, &id, &part, &frontier, NULL, &before));
    last = frontier[0];
    MUST(cuGraphNodeGetType(last, &type));
    printf("capturing %d, after %zu node of type %d\n", status, before, type);
    MUST(cuStreamUpdateCaptureDependencies(stream, &last, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    MUST(cuMemsetD8Async(x, 0, 16, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    describe(graph);
    MUST(cuGraphGetNodes(graph, nodes, &count));
    MUST(cuGraphHostNodeGetParams(nodes[0], &found));
    CHECK(found.fn == count_calls && found.userData == &ten);
    MUST(cuGraphDestroy(graph));
    TELL(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TELL(cuMemcpyHtoDAsync(x, NULL, 16, stream));
    cuStreamEndCapture(stream, &graph);
    if (graph)
        MUST(cuGraphDestroy(graph));
}

/* A graph that is captured again and again takes no more memory than once. */
static void often(CUstream stream, CUdeviceptr x)
{
    for (unsigned i = 0; i < 300; i++) {
        CUgraph graph = capture(stream, x, i);
        CUgraphExec exec;

        MUST(cuGraphInstantiate(&exec, graph, 0));
        MUST(cuGraphLaunch(exec, stream));
        MUST(cuGraphExecDestroy(exec));
        MUST(cuGraphDestroy(graph));
        if (i % 50 == 0)
            MUST(cuStreamSynchronize(stream));
    }
    MUST(cuStreamSynchronize(stream));
    show("often", output);
}

int main(void)
{
    CUdeviceptr x;
    CUstream stream;
    CUmodule module;

    context = start();
    input = malloc(COUNT * 4);
    output = calloc(COUNT, 4);
    MUST(cuModuleLoadData(&module, adding));
    MUST(cuModuleGetFunction(&add, module, "add"));
    MUST(cuMemAlloc(&x, COUNT * 4));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    number(0);
    captured(stream, x);
    unusual(stream, x);
    by_nodes(stream, x);
    set_often(stream, x);
    rebuilt(x);
    within_a_capture(stream, x);
    often(stream, x);
    MUST(cuCtxDestroy(context));
    puts("ok graph_copies");
    return 0;
}
