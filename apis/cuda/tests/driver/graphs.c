/* Graphs: captured from one stream and from two, and made node by node; launched, changed, cloned. */
#include "common.h"
#include "kernels.h"
#include <unistd.h>

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

/* A graph copies from ordinary memory, and from page-locked memory, what is there whenever it runs. */
static void copies(CUdeviceptr x)
{
    static unsigned ordinary[16];
    unsigned *pinned;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;

    MUST(cuMemAllocHost((void **)&pinned, 4096));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemcpyHtoDAsync(x, ordinary, sizeof(ordinary), stream));
    MUST(cuMemcpyHtoDAsync(x + 4, pinned, 4, stream));
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pinned, .srcPitch = 64, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = x + 8, .dstPitch = 128, .WidthInBytes = 8, .Height = 2};
    MUST(cuMemcpy2DAsync(&rows, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    pinned[0] = 31;
    pinned[16] = 32;
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(values, x, 256));
    printf("copied when it ran: %u %u %u\n", values[1], values[2], values[34]);
    pinned[0] = 33;
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(values, x, 256));
    printf("and again: %u %u %u\n", values[1], values[2], values[34]);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamDestroy(stream));
    MUST(cuMemFreeHost(pinned));
}

/* The functions for nodes of every kind, those for changing them, and for what a program made for CUDA 11 calls. */
static void changed_nodes(CUcontext context, CUdeviceptr x, CUdeviceptr y)
{
    CUgraph graph, child, found;
    CUgraphExec exec;
    CUgraphNode nodes[8], from[8], to[8];
    CUevent event, seen, other;
    CUgraphNodeParams parameters;
    CUDA_MEMSET_NODE_PARAMS fill_parameters;
    CUDA_MEMCPY3D copy_parameters;
    CUDA_HOST_NODE_PARAMS host_parameters;
    CUgraphExecUpdateResultInfo update;
    unsigned first = 40, length = 4, enabled;
    int one = 1, hundred = 100;
    size_t count;
    void *arguments[] = {&x, &first, &length};

    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphCreate(&child, 0));
    parameters = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_KERNEL};
    parameters.kernel.func = fill;
    parameters.kernel.gridDimX = parameters.kernel.gridDimY = parameters.kernel.gridDimZ = 1;
    parameters.kernel.blockDimX = 32;
    parameters.kernel.blockDimY = parameters.kernel.blockDimZ = 1;
    parameters.kernel.kernelParams = arguments;
    MUST(cuGraphAddNode(&nodes[0], graph, NULL, NULL, 0, &parameters));
    parameters = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    parameters.memcpy.copyCtx = context;
    parameters.memcpy.copyParams = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = x, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                                   .dstDevice = y, .WidthInBytes = 16, .Height = 1, .Depth = 1};
    MUST(cuGraphAddNode(&nodes[1], graph, &nodes[0], NULL, 1, &parameters));
    parameters = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET};
    parameters.memset.dst = y + 16;
    parameters.memset.value = 9;
    parameters.memset.elementSize = 4;
    parameters.memset.width = parameters.memset.height = 1;
    parameters.memset.ctx = context;
    MUST(cuGraphAddNode(&nodes[2], graph, &nodes[1], NULL, 1, &parameters));
    parameters = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_HOST};
    parameters.host.fn = called;
    parameters.host.userData = &one;
    MUST(cuGraphAddNode(&nodes[3], graph, &nodes[2], NULL, 1, &parameters));
    parameters = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD};
    parameters.eventRecord.event = event;
    MUST(cuGraphAddNode(&nodes[4], graph, &nodes[3], NULL, 1, &parameters));
    parameters = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_GRAPH};
    parameters.graph.graph = child;
    MUST(cuGraphAddNode(&nodes[5], graph, &nodes[4], NULL, 1, &parameters));
    count = 8;
    MUST(cuGraphGetEdges(graph, from, to, NULL, &count));
    printf("%zu edges", count);
    for (size_t i = 0; i < count; i++)
        for (int a = 0; a < 6; a++)
            for (int b = 0; b < 6; b++)
                if (from[i] == nodes[a] && to[i] == nodes[b])
                    printf(" %d-%d", a, b);
    puts("");
    MUST(cuGraphEventRecordNodeGetEvent(nodes[4], &seen));
    MUST(cuGraphMemsetNodeGetParams(nodes[2], &fill_parameters));
    MUST(cuGraphMemcpyNodeGetParams(nodes[1], &copy_parameters));
    MUST(cuGraphHostNodeGetParams(nodes[3], &host_parameters));
    MUST(cuGraphChildGraphNodeGetGraph(nodes[5], &found));
    printf("event %d, value %u, copies %zu, host %d %d, a graph of its own: %d\n", seen == event, fill_parameters.value,
           copy_parameters.WidthInBytes, host_parameters.fn == called, host_parameters.userData == &one, found != child);
    TELL(cuGraphMemsetNodeGetParams(nodes[1], &fill_parameters));
    TELL(cuGraphHostNodeGetParams(nodes[1], &host_parameters));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    calls = 0;
    MUST(cuGraphLaunch(exec, NULL));
    MUST(cuCtxSynchronize());
    show("every kind", y);

    fill_parameters.value = 10;
    MUST(cuGraphExecMemsetNodeSetParams(exec, nodes[2], &fill_parameters, context));
    host_parameters = (CUDA_HOST_NODE_PARAMS){.fn = called, .userData = &hundred};
    MUST(cuGraphExecHostNodeSetParams(exec, nodes[3], &host_parameters));
    copy_parameters.WidthInBytes = 4;
    MUST(cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &copy_parameters, context));
    MUST(cuGraphExecEventRecordNodeSetEvent(exec, nodes[4], other));
    MUST(cuGraphNodeSetEnabled(exec, nodes[0], 0));
    MUST(cuGraphNodeGetEnabled(exec, nodes[0], &enabled));
    MUST(cuMemsetD32(x, 77, 4));
    MUST(cuGraphLaunch(exec, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(values, y, 20));
    printf("enabled %u: %u %u %u, calls %d\n", enabled, values[0], values[1], values[4], calls);

    fill_parameters.value = 11;
    MUST(cuGraphMemsetNodeSetParams(nodes[2], &fill_parameters));
    MUST(cuGraphExecUpdate(exec, graph, &update));
    MUST(cuGraphLaunch(exec, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(values, y, 20));
    printf("updated %d: %u %u, calls %d\n", update.result, values[0], values[4], calls);
    MUST(cuGraphRemoveDependencies(graph, &nodes[4], &nodes[5], NULL, 1));
    MUST(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
    printf("%zu edges\n", count);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphDestroy(child));
    MUST(cuEventDestroy(event));
    MUST(cuEventDestroy(other));
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
    /* A stream that joined and was not joined again, and one that wants to end what it did not begin. */
    for (int wrong_end = 0; wrong_end < 2; wrong_end++) {
        MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        MUST(cuMemsetD32Async(x, 1, 1, stream));
        MUST(cuEventRecord(event, stream));
        MUST(cuStreamWaitEvent(other, event, 0));
        MUST(cuMemsetD32Async(x, 2, 1, other));
        if (wrong_end)
            TELL(cuStreamEndCapture(other, &graph));
        TELL(cuStreamEndCapture(stream, &graph));
    }
    MUST(cuMemsetD32Async(x, 4, 1, other));
    MUST(cuStreamSynchronize(other));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
    MUST(cuStreamDestroy(other));
}

static int released;

static void await_release(void *data)
{
    (void)data;
    while (!__atomic_load_n(&released, __ATOMIC_ACQUIRE))
        usleep(100);
}

/* An event that was seen complete, and is then recorded by a graph. */
static void recorded_by_a_graph(void)
{
    CUDA_HOST_NODE_PARAMS waiting = {.fn = await_release};
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode first, second;
    CUstream stream;
    CUevent event;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(event, stream));
    MUST(cuEventSynchronize(event));
    TELL(cuEventQuery(event));
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddHostNode(&first, graph, NULL, 0, &waiting));
    MUST(cuGraphAddEventRecordNode(&second, graph, &first, 1, event));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        __atomic_store_n(&released, 0, __ATOMIC_RELEASE);
        MUST(cuGraphLaunch(exec, stream));
        TELL(cuEventQuery(event));
        __atomic_store_n(&released, 1, __ATOMIC_RELEASE);
        MUST(cuEventSynchronize(event));
        TELL(cuEventQuery(event));
        MUST(cuStreamSynchronize(stream));
    }
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
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
    changed_nodes(context, x, y);
    copies(x);
    wrong_captures(x);
    recorded_by_a_graph();
    MUST(cuCtxDestroy(context));
    puts("ok graphs");
    return 0;
}
