/* Graphs made ready to run: a list of operations in an order that every dependency allows. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "stream.h"

struct step {
    CUgraphNode node; /* only compared: the graph may be gone */
    struct operation operation;
    bool disabled;
};

struct CUgraphExec_st {
    struct object object;
    struct step *steps;
    size_t count;
    cuuint64_t flags;
    struct user_references objects;
};

static void clear_steps(CUgraphExec exec)
{
    for (size_t i = 0; i < exec->count; i++)
        operation_clear(&exec->steps[i].operation);
    free(exec->steps);
    exec->steps = NULL;
    exec->count = 0;
}

static void destroy(void *object)
{
    CUgraphExec exec = object;

    clear_steps(exec);
    user_references_end(&exec->objects);
}

/* The steps of a graph; a child graph stays one step, and is laid out when it is launched. */
static CUresult fill(CUgraphExec exec, CUgraph graph)
{
    CUgraphNode *sorted = graph_sorted(graph);

    if (!sorted)
        return CUDA_ERROR_INVALID_VALUE;
    exec->steps = calloc(graph->count + 1, sizeof(*exec->steps));
    for (size_t i = 0; exec->steps && i < graph->count; i++) {
        struct step *step = &exec->steps[i];
        if (!operation_duplicate(&step->operation, &sorted[i]->operation)) {
            free(sorted);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        operation_note_printing(&step->operation);
        step->node = sorted[i];
        exec->count++;
    }
    free(sorted);
    return exec->steps ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult instantiate(CUgraphExec *result, CUgraph graph, cuuint64_t flags)
{
    const cuuint64_t known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                             CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    CUgraphExec exec;
    CUresult error;

    if (!result || !object_check(graph, KIND_GRAPH) || flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    exec = object_new(KIND_GRAPH_EXEC, sizeof(*exec), destroy);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->flags = flags;
    error = user_references_share(&exec->objects, &graph->objects) ? fill(exec, graph) : CUDA_ERROR_OUT_OF_MEMORY;
    if (error != CUDA_SUCCESS)
        object_end(exec);
    else
        *result = exec;
    return error;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return instantiate(exec, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    CUresult result = parameters ? instantiate(exec, graph, parameters->flags) : CUDA_ERROR_INVALID_VALUE;

    if (parameters) {
        parameters->hErrNode_out = NULL;
        parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    }
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (!object_check(exec, KIND_GRAPH_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    object_end(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    if (!object_check(exec, KIND_GRAPH_EXEC) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

static CUresult submit(CUstream stream, const struct operation *operation)
{
    struct operation copy;
    CUresult result = CUDA_SUCCESS;
    CUgraphNode *sorted;

    if (operation->kind != OPERATION_GRAPH)
        return operation_duplicate(&copy, operation) ? stream_enqueue(stream, &copy) : CUDA_ERROR_OUT_OF_MEMORY;
    sorted = graph_sorted(operation->graph);
    if (!sorted)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < operation->graph->count && result == CUDA_SUCCESS; i++)
        result = submit(stream, &sorted[i]->operation);
    free(sorted);
    return result;
}

/* The application's objects of the graph stay until this launch is over. */
static CUresult keep_objects(CUgraphExec exec, CUstream stream)
{
    struct operation operation = {.kind = OPERATION_KEEP};

    if (!exec->objects.count)
        return CUDA_SUCCESS;
    operation.kept = calloc(1, sizeof(*operation.kept));
    if (!operation.kept)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!user_references_share(operation.kept, &exec->objects)) {
        operation_clear(&operation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return stream_enqueue(stream, &operation);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (!object_check(exec, KIND_GRAPH_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
        if (exec->steps[i].operation.kind == OPERATION_CONDITIONAL)
            result = conditional_prepare(&exec->steps[i].operation, stream);
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
        if (!exec->steps[i].disabled)
            result = submit(stream, &exec->steps[i].operation);
    return result == CUDA_SUCCESS ? keep_objects(exec, stream) : result;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    return result != CUDA_SUCCESS ? result : object_check(exec, KIND_GRAPH_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- changing steps --- */

static struct step *find(CUgraphExec exec, CUgraphNode node)
{
    if (!object_check(exec, KIND_GRAPH_EXEC))
        return NULL;
    for (size_t i = 0; i < exec->count; i++)
        if (exec->steps[i].node == node)
            return &exec->steps[i];
    return NULL;
}

static CUresult replace(CUgraphExec exec, CUgraphNode node, struct operation *operation, CUresult made)
{
    struct step *step = find(exec, node);

    if (made != CUDA_SUCCESS)
        return made;
    if (!step || step->operation.kind != operation->kind) {
        operation_clear(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation_note_printing(operation);
    operation_clear(&step->operation);
    step->operation = *operation;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    struct operation operation;

    return replace(exec, node, &operation, operation_from_kernel(&operation, parameters));
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    struct operation operation;

    (void)context;
    return replace(exec, node, &operation, operation_from_copy(&operation, copy));
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    struct operation operation;

    (void)context;
    return replace(exec, node, &operation, operation_from_fill(&operation, fill));
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *host)
{
    struct operation operation;

    return replace(exec, node, &operation, operation_from_host(&operation, host));
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
    struct operation operation;

    return replace(exec, node, &operation, operation_from_graph(&operation, child));
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    struct operation operation;

    return replace(exec, node, &operation, operation_from_event(&operation, OPERATION_RECORD, event));
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    struct operation operation;

    return replace(exec, node, &operation, operation_from_event(&operation, OPERATION_WAIT, event));
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch)
{
    struct operation operation;

    return replace(exec, node, &operation, batch ? operation_from_batch(&operation, batch->paramArray, batch->count, batch->flags) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *parameters)
{
    struct operation operation;

    return replace(exec, node, &operation, operation_from_parameters(&operation, parameters));
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled)
{
    struct step *step = find(exec, node);

    if (!step || (step->operation.kind != OPERATION_KERNEL && step->operation.kind != OPERATION_COPY && step->operation.kind != OPERATION_FILL))
        return CUDA_ERROR_INVALID_VALUE;
    step->disabled = !enabled;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned *enabled)
{
    struct step *step = find(exec, node);

    if (!step || !enabled)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !step->disabled;
    return CUDA_SUCCESS;
}

/* The graph must look the same: as many nodes, of the same kinds in the same order. */
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    struct CUgraphExec_st updated = {.steps = NULL};
    bool same;
    CUresult result;

    if (!object_check(exec, KIND_GRAPH_EXEC) || !object_check(graph, KIND_GRAPH) || !info)
        return CUDA_ERROR_INVALID_VALUE;
    memset(info, 0, sizeof(*info));
    result = fill(&updated, graph);
    if (result != CUDA_SUCCESS) {
        clear_steps(&updated);
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
        return result;
    }
    same = updated.count == exec->count;
    for (size_t i = 0; same && i < exec->count; i++)
        same = updated.steps[i].operation.kind == exec->steps[i].operation.kind;
    if (!same) {
        clear_steps(&updated);
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    /* Nodes are still named as in the graph that was instantiated, and those that were switched off stay so. */
    for (size_t i = 0; i < exec->count; i++) {
        updated.steps[i].node = exec->steps[i].node;
        updated.steps[i].disabled = exec->steps[i].disabled;
    }
    user_references_end(&exec->objects);
    if (!user_references_share(&exec->objects, &graph->objects)) {
        clear_steps(&updated);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    clear_steps(exec);
    exec->steps = updated.steps;
    exec->count = updated.count;
    info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    return CUDA_SUCCESS;
}
