/* Graphs: captured from one stream and from two, and made node by node; launched, changed, cloned. */
#include "common.h"
#include "kernels.h"

enum { COUNT = 1024 };
static unsigned values[COUNT];
static CUfunction fill;
static int calls;

static void called(void *data) { calls += *(int *)data; }

static void show(const char *what, CUdeviceptr memory)
{
    MUST(cuMemcpyDtoH(values, memory, sizeof(values)));
    printf("%s: %u %u, calls %d\n", what, values[0], values[COUNT - 1], calls);
}

static void captured(CUdeviceptr x, CUdeviceptr y)
{
    CUstream stream, side;
    CUevent fork, join;
    CUgraph graph, part;
    CUgraphExec exec;
    CUgraphNode nodes[16];
    CUstreamCaptureStatus status;
    const CUgraphNode *dependencies;
    cuuint64_t id;
    size_t count, edges;
    unsigned first = 10, length = COUNT;
    int one = 1;
    void *parameters[] = {&x, &first, &length};

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemsetD32(x, 0, COUNT));
    MUST(cuMemsetD32(y, 0, COUNT));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(cuLaunchKernel(fill, 2, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    /* The parameters are taken when the call is made. */
    first = 99;
    MUST(cuEventRecord(fork, stream));
    MUST(cuStreamWaitEvent(side, fork, 0));
    MUST(cuStreamGetCaptureInfo(side, &status, &id, &part, &dependencies, NULL, &count));
    printf("the side captures: %d, after %zu nodes, id %s\n", status, count, id ? "is set" : "is 0");
    MUST(cuMemcpyDtoDAsync(y, x, sizeof(values), side));
    MUST(cuLaunchHostFunc(stream, called, &one));
    MUST(cuEventRecord(join, side));
    MUST(cuStreamWaitEvent(stream, join, 0));
    MUST(cuMemsetD32Async(x, 7, 1, stream));
    TELL(cuEventQuery(join));
    MUST(cuStreamIsCapturing(stream, &status));
    printf("capturing: %d\n", status);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuStreamIsCapturing(stream, &status));
    printf("capturing: %d\n", status);
    show("not run yet", y);
    count = 16;
    MUST(cuGraphGetNodes(graph, nodes, &count));
    MUST(cuGraphGetEdges(graph, NULL, NULL, NULL, &edges));
    printf("%zu nodes, %zu edges:", count, edges);
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        MUST(cuGraphNodeGetType(nodes[i], &type));
        printf(" %d", type);
    }
    puts("");
    MUST(cuGraphInstantiate(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    show("captured x", x);
    show("captured y", y);
    for (int i = 0; i < 5; i++)
        MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    show("again", y);

    /* Other parameters for the kernel of the instantiated graph. */
    CUDA_KERNEL_NODE_PARAMS changed;
    MUST(cuGraphKernelNodeGetParams(nodes[0], &changed));
    printf("kernel node: grid %u, block %u, first %u\n", changed.gridDimX, changed.blockDimX, *(unsigned *)changed.kernelParams[1]);
    first = 500;
    changed.kernelParams = parameters;
    changed.extra = NULL;
    MUST(cuGraphExecKernelNodeSetParams(exec, nodes[0], &changed));
    MUST(cuGraphLaunch(exec, NULL));
    show("changed", y);
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphLaunch(exec, NULL));
    show("without its graph", y);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuEventDestroy(fork));
    MUST(cuEventDestroy(join));
    MUST(cuStreamDestroy(stream));
    MUST(cuStreamDestroy(side));
}

static void by_nodes(CUcontext context, CUdeviceptr x, CUdeviceptr y)
{
    CUgraph graph, child, clone;
    CUgraphExec exec;
    CUgraphNode clear, kernel, copy, host, inner, last;
    unsigned first = 1000, length = COUNT;
    int ten = 10;
    void *parameters[] = {&x, &first, &length};
    CUDA_MEMSET_NODE_PARAMS memset_parameters = {.dst = x, .value = 3, .elementSize = 4, .width = COUNT, .height = 1};
    CUDA_KERNEL_NODE_PARAMS kernel_parameters = {.func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1,
                                                 .blockDimZ = 1, .kernelParams = parameters};
    CUDA_MEMCPY3D copy_parameters = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = x, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = y,
                                     .WidthInBytes = sizeof(values), .Height = 1, .Depth = 1};
    CUDA_HOST_NODE_PARAMS host_parameters = {.fn = called, .userData = &ten};
    size_t count;

    length = COUNT - 1;
    MUST(cuGraphCreate(&graph, 0));
    /* In another order than they must run: only the edges say. */
    MUST(cuGraphAddMemcpyNode(&copy, graph, NULL, 0, &copy_parameters, context));
    MUST(cuGraphAddKernelNode(&kernel, graph, NULL, 0, &kernel_parameters));
    MUST(cuGraphAddMemsetNode(&clear, graph, NULL, 0, &memset_parameters, context));
    MUST(cuGraphAddHostNode(&host, graph, &copy, 1, &host_parameters));
    MUST(cuGraphAddDependencies(graph, &clear, &kernel, NULL, 1));
    MUST(cuGraphAddDependencies(graph, &kernel, &copy, NULL, 1));
    MUST(cuGraphCreate(&child, 0));
    memset_parameters.value = 55;
    memset_parameters.width = 1;
    memset_parameters.dst = y;
    MUST(cuGraphAddMemsetNode(&inner, child, NULL, 0, &memset_parameters, context));
    MUST(cuGraphAddChildGraphNode(&inner, graph, &host, 1, child));
    MUST(cuGraphAddEmptyNode(&last, graph, &inner, 1));
    MUST(cuGraphGetRootNodes(graph, NULL, &count));
    printf("%zu root nodes\n", count);
    MUST(cuGraphNodeGetDependentNodes(kernel, NULL, NULL, &count));
    printf("%zu after the kernel\n", count);
    MUST(cuGraphClone(&clone, graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphDestroy(child));
    MUST(cuGraphInstantiate(&exec, clone, 0));
    calls = 0;
    MUST(cuGraphLaunch(exec, NULL));
    MUST(cuCtxSynchronize());
    show("nodes", y);
    MUST(cuGraphGetNodes(clone, NULL, &count));
    printf("the clone has %zu nodes\n", count);
    MUST(cuGraphExecDestroy(exec));

    CUgraphNode nodes[8];
    count = 8;
    MUST(cuGraphGetNodes(clone, nodes, &count));
    MUST(cuGraphAddDependencies(clone, &nodes[count - 1], &nodes[2], NULL, 1));
    TELL(cuGraphInstantiate(&exec, clone, 0));
    MUST(cuGraphDestroy(clone));
}

static void wrong_captures(CUdeviceptr x)
{
    CUstream stream, other;
    CUgraph graph;
    CUevent event;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TELL(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
    TELL(cuStreamEndCapture(stream, &graph));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    TELL(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    TELL(cuStreamSynchronize(stream));
    TELL(cuMemsetD32Async(x, 1, 1, stream));
    TELL(cuStreamEndCapture(stream, &graph));
    /* A stream that joined and was not joined again. */
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemsetD32Async(x, 1, 1, stream));
    MUST(cuEventRecord(event, stream));
    MUST(cuStreamWaitEvent(other, event, 0));
    MUST(cuMemsetD32Async(x, 2, 1, other));
    TELL(cuStreamEndCapture(other, &graph));
    TELL(cuStreamEndCapture(stream, &graph));
    MUST(cuMemsetD32Async(x, 4, 1, other));
    MUST(cuStreamSynchronize(other));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
    MUST(cuStreamDestroy(other));
}

int main(void)
{
    CUcontext context = start();
    CUmodule module;
    CUdeviceptr x, y;

    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuMemAlloc(&x, sizeof(values)));
    MUST(cuMemAlloc(&y, sizeof(values)));
    captured(x, y);
    by_nodes(context, x, y);
    wrong_captures(x);
    MUST(cuCtxDestroy(context));
    puts("ok graphs");
    return 0;
}
