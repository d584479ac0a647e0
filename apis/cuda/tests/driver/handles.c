/* Handles that were never made, or are gone. A real driver may crash on some of these; neither the reference driver
 * nor a remoted run may. */
#include "common.h"

int main(void)
{
    CUcontext context = start(), gone_context;
    CUstream stream, wild_stream = (CUstream)0x123456789abc, gone_stream;
    CUevent gone_event, wild_event = (CUevent)0x77;
    CUdeviceptr memory;
    CUfunction function;
    CUgraph graph;
    CUgraphExec exec;
    size_t count;
    unsigned number;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&gone_stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamDestroy(gone_stream));
    MUST(cuEventCreate(&gone_event, 0));
    MUST(cuEventDestroy(gone_event));
    MUST(cuMemAlloc(&memory, 100));
    TELL(cuStreamSynchronize(wild_stream));
    TELL(cuStreamQuery(gone_stream));
    TELL(cuStreamDestroy(gone_stream));
    TELL(cuStreamWaitEvent(stream, wild_event, 0));
    TELL(cuStreamWaitEvent(stream, gone_event, 0));
    TELL(cuEventRecord(gone_event, stream));
    TELL(cuEventRecord(wild_event, stream));
    TELL(cuEventDestroy(gone_event));
    TELL(cuMemsetD8Async(memory, 0, 100, wild_stream));
    TELL(cuModuleUnload((CUmodule)0x1234));
    TELL(cuModuleGetFunction(&function, (CUmodule)stream, "f"));
    TELL(cuLibraryUnload((CUlibrary)0x1234));
    TELL(cuModuleGetFunctionCount(&number, (CUmodule)0x9999));
    printf("wild graph: %s\n", cuGraphGetNodes((CUgraph)0x1234, NULL, &count) != CUDA_SUCCESS ? "refused" : "taken");
    printf("wild graph: %s\n", cuGraphInstantiate(&exec, (CUgraph)0x1234, 0) != CUDA_SUCCESS ? "refused" : "taken");
    printf("wild graph: %s\n", cuGraphLaunch((CUgraphExec)0x1234, stream) != CUDA_SUCCESS ? "refused" : "taken");
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphDestroy(graph));
    printf("destroyed graph: %s\n", cuGraphDestroy(graph) != CUDA_SUCCESS ? "refused" : "taken");
    TELL(cuCtxPushCurrent((CUcontext)0x1234));
    MUST(cuCtxCreate(&gone_context, NULL, 0, 0));
    MUST(cuCtxDestroy(gone_context));
    printf("destroyed context: %s\n", cuCtxPushCurrent(gone_context) != CUDA_SUCCESS ? "refused" : "taken");
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemFree(memory));
    MUST(cuStreamDestroy(stream));
    MUST(cuCtxDestroy(context));
    puts("ok handles");
    return 0;
}
