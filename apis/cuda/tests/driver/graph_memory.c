/* Nodes that allocate and free memory, run batches of operations on memory, or depend on a condition; a graph as text. */
#include "common.h"
#include "kernels.h"
#include <unistd.h>

enum { COUNT = 1024 };
static CUcontext context;
static CUstream stream;
static CUfunction fill, step;
static unsigned values[COUNT];

/* Adds to a word, and takes one off a condition, which here is a word of memory. */
static const char stepping[] = PTX_HEADER
    ".visible .entry step(.param .u64 p0, .param .u64 p1)\n"
    "{\n" PTX_REGISTERS
    "ld.param.u64 %rd1, [p0];\n"
    "ld.param.u64 %rd2, [p1];\n"
    "ld.global.u32 %r5, [%rd1];\n"
    "add.u32 %r5, %r5, 100;\n"
    "st.global.u32 [%rd1], %r5;\n"
    "ld.global.u32 %r6, [%rd2];\n"
    "sub.u32 %r6, %r6, 1;\n"
    "st.global.u32 [%rd2], %r6;\n"
    "ret;\n"
    "}\n";

static void attributes(const char *what)
{
    unsigned long long value[4];

    for (int i = 0; i < 4; i++)
        MUST(cuDeviceGetGraphMemAttribute(0, (CUgraphMem_attribute)i, &value[i]));
    printf("%s: used %llu, at most %llu; reserved %llu, at most %llu\n", what, value[0], value[1], value[2], value[3]);
}

static CUDA_KERNEL_NODE_PARAMS filling(CUdeviceptr *memory, unsigned *first, unsigned *length, void **parameters)
{
    parameters[0] = memory;
    parameters[1] = first;
    parameters[2] = length;
    return (CUDA_KERNEL_NODE_PARAMS){.func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 64, .blockDimY = 1,
                                     .blockDimZ = 1, .kernelParams = parameters};
}

static void launch(CUgraphExec exec)
{
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
}

static void by_nodes(CUdeviceptr out)
{
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
                                         .bytesize = sizeof(values)},
                               told;
    unsigned first = 70, length = COUNT;
    void *parameters[3];
    CUdeviceptr freed;
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = out,
                          .WidthInBytes = sizeof(values), .Height = 1, .Depth = 1};
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode alloc, work, copied, end;
    unsigned long long zero = 0;

    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &wanted));
    CHECK(wanted.dptr);
    MUST(cuGraphMemAllocNodeGetParams(alloc, &told));
    CHECK(told.dptr == wanted.dptr && told.bytesize == sizeof(values) && told.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    kernel = filling(&wanted.dptr, &first, &length, parameters);
    copy.srcDevice = wanted.dptr;
    MUST(cuGraphAddKernelNode(&work, graph, &alloc, 1, &kernel));
    MUST(cuGraphAddMemcpyNode(&copied, graph, &work, 1, &copy, context));
    MUST(cuGraphAddMemFreeNode(&end, graph, &copied, 1, wanted.dptr));
    MUST(cuGraphMemFreeNodeGetParams(end, &freed));
    CHECK(freed == wanted.dptr);
    attributes("before");
    MUST(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        launch(exec);
    MUST(cuMemcpyDtoH(values, out, sizeof(values)));
    printf("%u %u\n", values[0], values[COUNT - 1]);
    attributes("launched");
    MUST(cuDeviceGraphMemTrim(0));
    attributes("trimmed");
    MUST(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
    TELL(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero));
    attributes("reset");
    TELL(cuGraphAddMemFreeNode(&end, graph, NULL, 0, out));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

/* Memory that a captured stream allocates; freed in the graph, and by the application after a launch. */
static void captured(void)
{
    static unsigned first = 5, length = COUNT;
    CUdeviceptr inner, outer;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode nodes[8];
    size_t count = 8;

    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuMemAllocAsync(&inner, sizeof(values), stream));
    MUST(cuMemAllocAsync(&outer, sizeof(values), stream));
    void *parameters[] = {&inner, &first, &length};
    MUST(cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    MUST(cuMemcpyDtoDAsync(outer, inner, sizeof(values), stream));
    MUST(cuMemcpyDtoHAsync(values, inner, sizeof(values), stream));
    MUST(cuMemFreeAsync(inner, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphGetNodes(graph, nodes, &count));
    printf("captured:");
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        MUST(cuGraphNodeGetType(nodes[i], &type));
        printf(" %d", type);
    }
    puts("");
    MUST(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        memset(values, 0, sizeof(values));
        launch(exec);
        printf("%u %u", values[0], values[COUNT - 1]);
        MUST(cuMemcpyDtoH(values, outer, sizeof(values)));
        printf(", outside %u\n", values[COUNT - 1]);
        if (i == 0)
            MUST(cuMemFreeAsync(outer, stream));
        else
            MUST(cuMemFree(outer));
        MUST(cuStreamSynchronize(stream));
    }
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static void batches(CUdeviceptr words)
{
    CUstreamBatchMemOpParams list[3], wild[1];
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {.ctx = context, .count = 3, .paramArray = list}, told;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;

    memset(list, 0, sizeof(list));
    memset(wild, 0, sizeof(wild));
    MUST(cuMemsetD32(words, 0, 8));
    list[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    list[0].writeValue.address = words;
    list[0].writeValue.value = 11;
    list[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    list[1].writeValue.address = words + 8;
    list[1].writeValue.value64 = 0x500000006ull;
    list[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    list[2].waitValue.address = words;
    list[2].waitValue.value = 11;
    list[2].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    wild[0] = list[0];
    wild[0].writeValue.address = 0x1000;
    MUST(cuStreamBatchMemOp(stream, 3, list, 0));
    TELL(cuStreamBatchMemOp(stream, 1, wild, 0));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(values, words, 16));
    printf("batch: %u %u %u\n", values[0], values[2], values[3]);
    MUST(cuGraphCreate(&graph, 0));
    list[0].writeValue.value = list[2].waitValue.value = 12;
    MUST(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &batch));
    MUST(cuGraphBatchMemOpNodeGetParams(node, &told));
    printf("%u operations, the last for %u\n", told.count, told.paramArray[2].waitValue.value);
    MUST(cuGraphInstantiate(&exec, graph, 0));
    launch(exec);
    MUST(cuMemcpyDtoH(values, words, 16));
    printf("as a node: %u\n", values[0]);
    list[0].writeValue.value = list[2].waitValue.value = 13;
    MUST(cuGraphExecBatchMemOpNodeSetParams(exec, node, &batch));
    launch(exec);
    MUST(cuMemcpyDtoH(values, words, 16));
    printf("set: %u\n", values[0]);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static CUgraph body(CUgraph graph, CUgraphConditionalHandle handle, CUgraphConditionalNodeType type, unsigned size, unsigned number)
{
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    CUgraphNode node;

    parameters.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){.handle = handle, .type = type, .size = size, .ctx = context};
    MUST(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters));
    return parameters.conditional.phGraph_out[number];
}

/* Only where a condition is a word: another driver's kernels call a function to set it. */
static void conditions(CUdeviceptr word)
{
    char name[64];
    CUgraph graph, inner;
    CUgraphExec exec;
    CUgraphNode node;
    CUgraphConditionalHandle handle;
    CUDA_MEMSET_NODE_PARAMS set = {.dst = word + 4, .value = 33, .elementSize = 4, .width = 1, .height = 1};

    MUST(cuDeviceGetName(name, sizeof(name), 0));
    if (strncmp(name, "Aviary Reference", 16) != 0)
        return;
    for (unsigned value = 0; value < 3; value++) {
        MUST(cuMemsetD32(word, 0, 8));
        MUST(cuGraphCreate(&graph, 0));
        MUST(cuGraphConditionalHandleCreate(&handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
        inner = body(graph, handle, CU_GRAPH_COND_TYPE_WHILE, 1, 0);
        void *parameters[] = {&word, &handle};
        CUDA_KERNEL_NODE_PARAMS kernel = {.func = step, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                                          .blockDimZ = 1, .kernelParams = parameters};
        MUST(cuGraphAddKernelNode(&node, inner, NULL, 0, &kernel));
        MUST(cuGraphConditionalHandleCreate(&handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
        inner = body(graph, handle, CU_GRAPH_COND_TYPE_IF, 1, 0);
        MUST(cuGraphAddMemsetNode(&node, inner, NULL, 0, &set, context));
        MUST(cuGraphConditionalHandleCreate(&handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
        inner = body(graph, handle, CU_GRAPH_COND_TYPE_SWITCH, 2, 1);
        set.dst += 4;
        MUST(cuGraphAddMemsetNode(&node, inner, NULL, 0, &set, context));
        set.dst -= 4;
        MUST(cuGraphInstantiate(&exec, graph, 0));
        launch(exec);
        launch(exec);
        MUST(cuMemcpyDtoH(values, word, 12));
        printf("conditions of %u: %u %u %u\n", value, values[0], values[1], values[2]);
        MUST(cuGraphExecDestroy(exec));
        MUST(cuGraphDestroy(graph));
    }
}

/* Its form is the driver's own affair; that there is a file that Graphviz reads is not. */
static void text(CUdeviceptr memory)
{
    char path[] = "/tmp/graph-XXXXXX", line[256] = "";
    int descriptor = mkstemp(path);
    CUDA_MEMSET_NODE_PARAMS set = {.dst = memory, .value = 33, .elementSize = 4, .width = 1, .height = 1};
    CUgraph graph;
    CUgraphNode first, second;
    CUresult result;
    FILE *file;

    CHECK(descriptor >= 0);
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddEmptyNode(&first, graph, NULL, 0));
    MUST(cuGraphAddMemsetNode(&second, graph, &first, 1, &set, context));
    result = cuGraphDebugDotPrint(graph, path, 0);
    if (result != CUDA_ERROR_NOT_SUPPORTED) {
        file = fopen(path, "r");
        CHECK(result == CUDA_SUCCESS && file && fgets(line, sizeof(line), file) && strncmp(line, "digraph", 7) == 0);
        fclose(file);
    }
    CHECK(cuGraphDebugDotPrint(graph, "/nowhere/at/all", 0) != CUDA_SUCCESS);
    close(descriptor);
    unlink(path);
    MUST(cuGraphDestroy(graph));
}

int main(void)
{
    CUdeviceptr memory;
    CUmodule module;

    context = start();
    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuModuleLoadData(&module, stepping));
    MUST(cuModuleGetFunction(&step, module, "step"));
    MUST(cuMemAlloc(&memory, sizeof(values)));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    by_nodes(memory);
    captured();
    batches(memory);
    conditions(memory);
    text(memory);
    MUST(cuCtxDestroy(context));
    puts("ok graph_memory");
    return 0;
}
