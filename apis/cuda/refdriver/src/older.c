/* Older variants of functions, which programs ask for by version: each does what its successor does. (cuda.h
 * renames the plain names to the newest variant, so the variants are written out with their prefix here.) */
#include <cuda.h>
#include <string.h>

#include "driver.h"

CUresult implement_cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress(name, function, version, flags, NULL);
}

CUresult implement_cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
CUresult implement_cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease(device); }
CUresult implement_cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset(device); }

CUresult implement_cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags(device, flags);
}

CUresult implement_cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate(context, NULL, flags, device);
}

CUresult implement_cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)
{
    CUctxCreateParams parameters = {.execAffinityParams = affinity, .numExecAffinityParams = count};

    return cuCtxCreate(context, &parameters, flags, device);
}

CUresult implement_cuCtxDestroy(CUcontext context) { return cuCtxDestroy(context); }
CUresult implement_cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent(context); }
CUresult implement_cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent(context); }
CUresult implement_cuEventDestroy(CUevent event) { return cuEventDestroy(event); }
CUresult implement_cuStreamDestroy(CUstream stream) { return cuStreamDestroy(stream); }

CUresult implement_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime(milliseconds, start, end);
}

CUresult implement_cuMemHostRegister(void *memory, size_t size, unsigned flags)
{
    return cuMemHostRegister(memory, size, flags);
}

CUresult implement_cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    return cuStreamWriteValue32(stream, address, value, flags);
}

CUresult implement_cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return cuStreamWriteValue64(stream, address, value, flags);
}

CUresult implement_cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    return cuStreamWaitValue32(stream, address, value, flags);
}

CUresult implement_cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return cuStreamWaitValue64(stream, address, value, flags);
}

/* --- capture --- */

CUresult implement_cuStreamBeginCapture(CUstream stream) { return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }

CUresult implement_cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return cuStreamGetCaptureInfo(stream, status, id, NULL, NULL, NULL, NULL);
}

CUresult implement_cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                             const CUgraphNode **dependencies, size_t *count)
{
    return cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, NULL, count);
}

CUresult implement_cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count, unsigned flags)
{
    return cuStreamUpdateCaptureDependencies(stream, dependencies, NULL, count, flags);
}

/* --- graphs: without data of edges, and with kernels only as functions --- */

CUresult implement_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges(graph, from, to, NULL, count);
}

CUresult implement_cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return cuGraphNodeGetDependencies(node, nodes, NULL, count);
}

CUresult implement_cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return cuGraphNodeGetDependentNodes(node, nodes, NULL, count);
}

CUresult implement_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return cuGraphAddDependencies(graph, from, to, NULL, count);
}

CUresult implement_cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return cuGraphRemoveDependencies(graph, from, to, NULL, count);
}

CUresult implement_cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  CUgraphNodeParams *parameters)
{
    return cuGraphAddNode(node, graph, dependencies, NULL, count, parameters);
}

CUresult implement_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t size)
{
    if (failed)
        *failed = NULL;
    if (log && size)
        *log = 0;
    return cuGraphInstantiate(exec, graph, 0);
}

CUresult implement_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t size)
{
    return implement_cuGraphInstantiate(exec, graph, failed, log, size);
}

CUresult implement_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *failed, CUgraphExecUpdateResult *result)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult error = cuGraphExecUpdate(exec, graph, &info);

    if (failed)
        *failed = NULL;
    if (result)
        *result = info.result;
    return error;
}

static CUDA_KERNEL_NODE_PARAMS newer(const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    CUDA_KERNEL_NODE_PARAMS result = {0};

    memcpy(&result, parameters, sizeof(*parameters));
    return result;
}

CUresult implement_cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    CUDA_KERNEL_NODE_PARAMS all;

    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    all = newer(parameters);
    return cuGraphAddKernelNode(node, graph, dependencies, count, &all);
}

CUresult implement_cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    CUDA_KERNEL_NODE_PARAMS all;
    CUresult result = parameters ? cuGraphKernelNodeGetParams(node, &all) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS) {
        memcpy(parameters, &all, sizeof(*parameters));
        /* This variant knows no other field for a kernel. */
        if (!parameters->func)
            parameters->func = (CUfunction)all.kern;
    }
    return result;
}

CUresult implement_cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    CUDA_KERNEL_NODE_PARAMS all;

    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    all = newer(parameters);
    return cuGraphKernelNodeSetParams(node, &all);
}

CUresult implement_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    CUDA_KERNEL_NODE_PARAMS all;

    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    all = newer(parameters);
    return cuGraphExecKernelNodeSetParams(exec, node, &all);
}
