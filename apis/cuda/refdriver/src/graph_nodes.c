/* Nodes of each kind: adding them, and reading and changing their parameters. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "launch.h"
#include "module.h"
#include "stream.h"

CUresult operation_from_kernel(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    *operation = (struct operation){.kind = OPERATION_KERNEL};
    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    const unsigned grid[] = {parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ};
    const unsigned block[] = {parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ};
    return launch_make(&operation->launch, parameters->func ? parameters->func : (CUfunction)parameters->kern, grid, block,
                       parameters->sharedMemBytes, parameters->kernelParams, parameters->extra);
}

CUresult operation_from_copy(struct operation *operation, const CUDA_MEMCPY3D *copy)
{
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.kind = OPERATION_COPY, .copy = *copy};
    return copy_check(copy);
}

CUresult operation_from_fill(struct operation *operation, const CUDA_MEMSET_NODE_PARAMS *fill)
{
    if (!fill)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.kind = OPERATION_FILL, .fill = *fill};
    return fill_check(fill);
}

CUresult operation_from_host(struct operation *operation, const CUDA_HOST_NODE_PARAMS *host)
{
    if (!host || !host->fn)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.kind = OPERATION_HOST, .host = *host};
    return CUDA_SUCCESS;
}

CUresult operation_from_event(struct operation *operation, enum operation_kind kind, CUevent event)
{
    if (!object_check(event, KIND_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    *operation = (struct operation){.kind = kind, .event = event};
    object_hold(event);
    return CUDA_SUCCESS;
}

CUresult operation_from_graph(struct operation *operation, CUgraph graph)
{
    if (!object_check(graph, KIND_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.kind = OPERATION_GRAPH, .graph = graph_clone(graph)};
    return operation->graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult from_allocation(struct operation *operation, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *wanted)
{
    CUcontext context;
    CUresult result = context_need(&context);

    if (result == CUDA_SUCCESS && (wanted->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || wanted->poolProps.handleTypes ||
                                   wanted->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = operation_from_allocation(operation, wanted->poolProps.location.id, wanted->bytesize, context);
    if (result == CUDA_SUCCESS)
        wanted->dptr = graph_memory_start(operation->memory);
    return result;
}

CUresult operation_from_parameters(struct operation *operation, CUgraphNodeParams *parameters)
{
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_HOST_NODE_PARAMS host;

    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        memcpy(&kernel, &parameters->kernel, sizeof(kernel));
        return operation_from_kernel(operation, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return operation_from_copy(operation, &parameters->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        memcpy(&fill, &parameters->memset, sizeof(fill));
        return operation_from_fill(operation, &fill);
    case CU_GRAPH_NODE_TYPE_HOST:
        memcpy(&host, &parameters->host, sizeof(host));
        return operation_from_host(operation, &host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return operation_from_graph(operation, parameters->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *operation = (struct operation){.kind = OPERATION_EMPTY};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return operation_from_event(operation, OPERATION_WAIT, parameters->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return operation_from_event(operation, OPERATION_RECORD, parameters->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return from_allocation(operation, &parameters->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return operation_from_free(operation, parameters->free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return operation_from_batch(operation, parameters->memOp.paramArray, parameters->memOp.count, parameters->memOp.flags);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return operation_from_conditional(operation, &parameters->conditional);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                    struct operation *operation, CUresult made)
{
    if (made != CUDA_SUCCESS)
        return made;
    if (!node || !object_check(graph, KIND_GRAPH)) {
        operation_clear(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return graph_add(node, graph, dependencies, count, operation);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data,
                        size_t count, CUgraphNodeParams *parameters)
{
    struct operation operation;

    (void)data;
    return add(node, graph, dependencies, count, &operation, operation_from_parameters(&operation, parameters));
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    struct operation operation;

    return add(node, graph, dependencies, count, &operation, operation_from_kernel(&operation, parameters));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    struct operation operation;

    (void)context;
    return add(node, graph, dependencies, count, &operation, operation_from_copy(&operation, copy));
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    struct operation operation;

    (void)context;
    return add(node, graph, dependencies, count, &operation, operation_from_fill(&operation, fill));
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_HOST_NODE_PARAMS *host)
{
    struct operation operation;

    return add(node, graph, dependencies, count, &operation, operation_from_host(&operation, host));
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child)
{
    struct operation operation;

    return add(node, graph, dependencies, count, &operation, operation_from_graph(&operation, child));
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    struct operation operation = {.kind = OPERATION_EMPTY};

    return add(node, graph, dependencies, count, &operation, CUDA_SUCCESS);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *wanted)
{
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUresult result;

    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&parameters.alloc, wanted, sizeof(*wanted));
    result = cuGraphAddNode(node, graph, dependencies, NULL, count, &parameters);
    wanted->dptr = parameters.alloc.dptr;
    return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUdeviceptr address)
{
    struct operation operation;

    return add(node, graph, dependencies, count, &operation, operation_from_free(&operation, address));
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch)
{
    struct operation operation;

    if (!batch)
        return CUDA_ERROR_INVALID_VALUE;
    return add(node, graph, dependencies, count, &operation, operation_from_batch(&operation, batch->paramArray, batch->count, batch->flags));
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event)
{
    struct operation operation;

    return add(node, graph, dependencies, count, &operation, operation_from_event(&operation, OPERATION_RECORD, event));
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event)
{
    struct operation operation;

    return add(node, graph, dependencies, count, &operation, operation_from_event(&operation, OPERATION_WAIT, event));
}

/* --- parameters --- */

static bool is(CUgraphNode node, enum operation_kind kind)
{
    return object_check(node, KIND_NODE) && node->operation.kind == kind;
}

static CUresult replace(CUgraphNode node, struct operation *operation, CUresult made)
{
    if (made != CUDA_SUCCESS)
        return made;
    if (!object_check(node, KIND_NODE) || node->operation.kind != operation->kind) {
        operation_clear(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation_clear(&node->operation);
    node->operation = *operation;
    free(node->pointers);
    node->pointers = NULL;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
    const struct launch *launch;
    const struct ptx_code *code;

    if (!is(node, OPERATION_KERNEL) || !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    launch = &node->operation.launch;
    code = launch->function->code;
    if (!node->pointers) {
        node->pointers = calloc(code->parameter_count + 1, sizeof(*node->pointers));
        if (!node->pointers)
            return CUDA_ERROR_OUT_OF_MEMORY;
        for (size_t i = 0; i < code->parameter_count; i++)
            node->pointers[i] = launch->parameters + code->parameters[i].offset;
    }
    *parameters = (CUDA_KERNEL_NODE_PARAMS){
        .func = launch->kernel ? NULL : launch->function,
        .gridDimX = launch->grid[0],
        .gridDimY = launch->grid[1],
        .gridDimZ = launch->grid[2],
        .blockDimX = launch->block[0],
        .blockDimY = launch->block[1],
        .blockDimZ = launch->block[2],
        .sharedMemBytes = launch->shared,
        .kernelParams = node->pointers,
        .kern = launch->kernel,
        .ctx = launch->kernel ? launch->function->module->context : NULL,
    };
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    struct operation operation;

    return replace(node, &operation, operation_from_kernel(&operation, parameters));
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *copy)
{
    if (!is(node, OPERATION_COPY) || !copy)
        return CUDA_ERROR_INVALID_VALUE;
    *copy = node->operation.copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy)
{
    struct operation operation;

    return replace(node, &operation, operation_from_copy(&operation, copy));
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *fill)
{
    if (!is(node, OPERATION_FILL) || !fill)
        return CUDA_ERROR_INVALID_VALUE;
    *fill = node->operation.fill;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill)
{
    struct operation operation;

    return replace(node, &operation, operation_from_fill(&operation, fill));
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *host)
{
    if (!is(node, OPERATION_HOST) || !host)
        return CUDA_ERROR_INVALID_VALUE;
    *host = node->operation.host;
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *host)
{
    struct operation operation;

    return replace(node, &operation, operation_from_host(&operation, host));
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch)
{
    struct operation operation;

    return replace(node, &operation, batch ? operation_from_batch(&operation, batch->paramArray, batch->count, batch->flags) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *parameters)
{
    struct operation operation;

    return replace(node, &operation, operation_from_parameters(&operation, parameters));
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    if (!is(node, OPERATION_GRAPH) || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->operation.graph;
    return CUDA_SUCCESS;
}

static CUresult get_event(CUgraphNode node, enum operation_kind kind, CUevent *event)
{
    if (!is(node, kind) || !event)
        return CUDA_ERROR_INVALID_VALUE;
    *event = node->operation.event;
    return CUDA_SUCCESS;
}

static CUresult set_event(CUgraphNode node, enum operation_kind kind, CUevent event)
{
    struct operation operation;

    return replace(node, &operation, operation_from_event(&operation, kind, event));
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event) { return get_event(node, OPERATION_RECORD, event); }
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event) { return get_event(node, OPERATION_WAIT, event); }
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) { return set_event(node, OPERATION_RECORD, event); }
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) { return set_event(node, OPERATION_WAIT, event); }
