/* Nodes of graphs that an application makes itself. Each kind has a message of its own; the parameters of a kernel
 * travel packed, as those of a launch do, and a host function is called in this process. */
#include "guest/functions.h"
#include "guest/graphs.h"
#include <stdlib.h>
#include <string.h>

/* ---- Kernels -------------------------------------------------------------------------------- */

static CUresult kernel_node(const struct cuda_place *place, const CUDA_KERNEL_NODE_PARAMS *wanted) {
    _Alignas(16) unsigned char buffer[CUDA_PARAMETER_BYTES];
    const void *parameters = NULL;
    size_t bytes = 0;
    CUfunction function = cuda_function(wanted->func ? wanted->func : (CUfunction)wanted->kern);
    CUresult status = cuda_pack(function, wanted->kernelParams, wanted->extra, buffer, &parameters, &bytes);
    if (status != CUDA_SUCCESS)
        return status;
    aviary_launch_shape shape = {{wanted->gridDimX, wanted->gridDimY, wanted->gridDimZ},
                                 {wanted->blockDimX, wanted->blockDimY, wanted->blockDimZ},
                                 wanted->sharedMemBytes,
                                 0};
    if (place->made)
        return aviaryAddKernelNode(place->made, place->graph, place->dependencies, place->edges, place->count, function,
                                   shape, parameters, bytes);
    return aviarySetKernelNode(place->exec, place->node, function, shape, parameters, bytes);
}

/* The pointers that the driver hands out are valid as long as the node is, or until its parameters are set. */
CUresult cuda_get_kernel_node(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *wanted) {
    struct cuda_node *object = cuda_node_of(node);
    if (!wanted || !object)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned char *bytes = malloc(CUDA_PARAMETER_BYTES);
    unsigned int used = 0;
    CUfunction function = NULL;
    CUkernel kernel = NULL;
    CUcontext context = NULL;
    aviary_launch_shape shape;
    if (!bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = aviaryGetKernelNode(node, &function, &kernel, &context, &shape, CUDA_PARAMETER_BYTES, bytes, &used);
    CUfunction code = function ? function : cuda_function((CUfunction)kernel);
    const struct cuda_layout *layout = status == CUDA_SUCCESS && code ? cuda_layout_of(code) : NULL;
    struct cuda_node_parameters *kept = layout ? malloc(sizeof *kept + layout->count * sizeof(void *) + used) : NULL;
    if (!kept) {
        free(bytes);
        return status == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : status;
    }
    unsigned char *values = (unsigned char *)(kept->pointers + layout->count);
    kept->count = layout->count;
    memcpy(values, bytes, used);
    free(bytes);
    for (uint32_t i = 0; i < layout->count; i++)
        kept->pointers[i] = values + layout->offset[i];
    free(__atomic_exchange_n(&object->parameters, kept, __ATOMIC_ACQ_REL));
    *wanted = (CUDA_KERNEL_NODE_PARAMS){
        .func = function, .gridDimX = shape.grid[0], .gridDimY = shape.grid[1], .gridDimZ = shape.grid[2],
        .blockDimX = shape.block[0], .blockDimY = shape.block[1], .blockDimZ = shape.block[2],
        .sharedMemBytes = shape.shared_bytes, .kernelParams = kept->pointers, .kern = kernel, .ctx = context,
    };
    return CUDA_SUCCESS;
}

/* ---- Copies and fills ----------------------------------------------------------------------- */

static CUresult copy_node(const struct cuda_place *place, const CUDA_MEMCPY3D *wanted, CUcontext context) {
    CUDA_MEMCPY3D copy;
    struct cuda_host_sides sides;
    aviary_halves halves;
    CUresult status = cuda_prepare_graph_copy(wanted, &copy, &sides, &halves);
    if (status != CUDA_SUCCESS)
        return status;
    status = place->made ? aviaryAddCopyNode(place->made, place->graph, place->dependencies, place->edges, place->count, copy,
                                             sides.from, sides.from_bytes, sides.to, sides.to_bytes, context, halves)
                         : aviarySetCopyNode(place->exec, place->node, copy, sides.from, sides.from_bytes, sides.to,
                                             sides.to_bytes, context, halves);
    cuda_end_preparing(place->exec, place->node, &halves, status);
    return status;
}

/* Where the host's sides are as the application named them. */
CUresult cuda_get_copy_node(CUgraphNode node, CUDA_MEMCPY3D *wanted) {
    unsigned long long from = 0, to = 0;
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = aviaryGetCopyNode(node, wanted, &from, &to);
    if (status == CUDA_SUCCESS) {
        wanted->srcHost = (const void *)(uintptr_t)from;
        wanted->dstHost = (void *)(uintptr_t)to;
    }
    return status;
}

static CUresult fill_node(const struct cuda_place *place, const CUDA_MEMSET_NODE_PARAMS_v2 *fill) {
    if (place->made)
        return aviaryAddFillNode(place->made, place->graph, place->dependencies, place->edges, place->count, *fill);
    return aviarySetFillNode(place->exec, place->node, *fill);
}

/* ---- Host functions ------------------------------------------------------------------------- */

static CUresult host_node(const struct cuda_place *place, CUhostFn function, void *data) {
    aviary_host_call call = {(uintptr_t)function, (uintptr_t)data};
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    return place->made ? aviaryAddHostNode(place->made, place->graph, place->dependencies, place->edges, place->count, function,
                                           data, call)
                       : aviarySetHostNode(place->exec, place->node, function, data, call);
}

CUresult cuda_get_host_node(CUgraphNode node, CUDA_HOST_NODE_PARAMS *wanted) {
    aviary_host_call call;
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = aviaryGetHostNode(node, &call);
    if (status == CUDA_SUCCESS)
        *wanted = (CUDA_HOST_NODE_PARAMS){.fn = (CUhostFn)(uintptr_t)call.function, .userData = (void *)(uintptr_t)call.data};
    return status;
}

CUresult cuda_capture_host(CUstream stream, CUhostFn function, void *data) {
    aviary_host_call call = {(uintptr_t)function, (uintptr_t)data};
    return aviaryCaptureHost(stream, function, data, call);
}

/* ---- Every kind ----------------------------------------------------------------------------- */

/* The owner of the child afterwards: the graph has a copy of it, or has it itself. */
static CUresult object_node(const struct cuda_place *place, CUgraphNodeType type, CUgraph child,
                            CUgraphChildGraphNodeOwnership ownership, CUevent event) {
    if (place->made)
        return aviaryAddNode(place->made, place->graph, place->dependencies, place->edges, place->count, type, child,
                             ownership, event);
    return aviarySetNode(place->exec, place->node, type, child, ownership, event);
}

static CUresult any_node(const struct cuda_place *place, CUgraphNodeParams *wanted) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    switch (wanted->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        /* The two structures are the same but for their names. */
        memcpy(&kernel, &wanted->kernel, sizeof kernel);
        return kernel_node(place, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copy_node(place, &wanted->memcpy.copyParams, wanted->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: return fill_node(place, &wanted->memset);
    case CU_GRAPH_NODE_TYPE_HOST: return host_node(place, wanted->host.fn, wanted->host.userData);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return object_node(place, wanted->type, wanted->graph.graph, wanted->graph.ownership, NULL);
    case CU_GRAPH_NODE_TYPE_EMPTY: return object_node(place, wanted->type, NULL, 0, NULL);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return object_node(place, wanted->type, NULL, 0, wanted->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return object_node(place, wanted->type, NULL, 0, wanted->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return cuda_alloc_node(place, &wanted->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuda_free_node(place, wanted->free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return cuda_batch_node(place, &wanted->memOp);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return cuda_conditional_node(place, &wanted->conditional);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuda_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                       size_t count, CUgraphNodeParams *wanted) {
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    return any_node(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .edges = edges, .count = count},
                    wanted);
}

CUresult cuda_set_node(CUgraphNode node, CUgraphNodeParams *wanted) {
    return any_node(&(struct cuda_place){.node = node}, wanted);
}

CUresult cuda_exec_set_node(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *wanted) {
    return exec ? any_node(&(struct cuda_place){.exec = exec, .node = node}, wanted) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- The functions for one kind -------------------------------------------------------------- */

CUresult cuda_add_kernel_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *wanted) {
    if (!node || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    return kernel_node(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, wanted);
}

CUresult cuda_set_kernel_node(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *wanted) {
    return wanted ? kernel_node(&(struct cuda_place){.node = node}, wanted) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_exec_set_kernel_node(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *wanted) {
    return exec && wanted ? kernel_node(&(struct cuda_place){.exec = exec, .node = node}, wanted) : CUDA_ERROR_INVALID_VALUE;
}

/* Before CUDA 12 the parameters ended with `extra`. */
static CUDA_KERNEL_NODE_PARAMS newer(const CUDA_KERNEL_NODE_PARAMS_v1 *older) {
    CUDA_KERNEL_NODE_PARAMS wanted = {0};
    memcpy(&wanted, older, sizeof *older);
    return wanted;
}

CUresult cuda_add_kernel_node_v1(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS_v1 *older) {
    if (!older)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS wanted = newer(older);
    return cuda_add_kernel_node(node, graph, dependencies, count, &wanted);
}

CUresult cuda_set_kernel_node_v1(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *older) {
    if (!older)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS wanted = newer(older);
    return cuda_set_kernel_node(node, &wanted);
}

CUresult cuda_exec_set_kernel_node_v1(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *older) {
    if (!older)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS wanted = newer(older);
    return cuda_exec_set_kernel_node(exec, node, &wanted);
}

CUresult cuda_get_kernel_node_v1(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *older) {
    CUDA_KERNEL_NODE_PARAMS found;
    if (!older)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuda_get_kernel_node(node, &found);
    if (status != CUDA_SUCCESS)
        return status;
    if (!found.func)
        found.func = cuda_function((CUfunction)found.kern);
    memcpy(older, &found, sizeof *older);
    return CUDA_SUCCESS;
}

CUresult cuda_add_copy_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_MEMCPY3D *wanted, CUcontext context) {
    if (!node || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    return copy_node(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, wanted, context);
}

CUresult cuda_set_copy_node(CUgraphNode node, const CUDA_MEMCPY3D *wanted) {
    return wanted ? copy_node(&(struct cuda_place){.node = node}, wanted, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_exec_set_copy_node(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *wanted, CUcontext context) {
    return exec && wanted ? copy_node(&(struct cuda_place){.exec = exec, .node = node}, wanted, context) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_add_fill_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_MEMSET_NODE_PARAMS *wanted, CUcontext context) {
    CUDA_MEMSET_NODE_PARAMS_v2 fill = {0};
    if (!node || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&fill, wanted, sizeof *wanted);
    fill.ctx = context;
    return fill_node(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, &fill);
}

CUresult cuda_add_object_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              CUgraphNodeType type, CUgraph child, CUevent event) {
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    return object_node(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, type, child,
                       CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, event);
}

CUresult cuda_add_host_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS *wanted) {
    if (!node || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    return host_node(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, wanted->fn,
                     wanted->userData);
}

CUresult cuda_set_host_node(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *wanted) {
    return wanted ? host_node(&(struct cuda_place){.node = node}, wanted->fn, wanted->userData) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_exec_set_host_node(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *wanted) {
    return exec && wanted ? host_node(&(struct cuda_place){.exec = exec, .node = node}, wanted->fn, wanted->userData)
                          : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_update_exec(CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *result) {
    CUgraphExecUpdateResultInfo information = {0};
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGraphExecUpdate_v2(exec, graph, &information);
    *result = information.result;
    if (node)
        *node = information.errorNode;
    return status;
}
