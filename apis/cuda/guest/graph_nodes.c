/* Nodes of graphs that an application makes itself. Each kind has a message of its own; the parameters of a kernel
 * travel packed, as those of a launch do, and a host function is called in this process. */
#include "guest/guest.h"
#include <stdlib.h>
#include <string.h>

/* The place of a node in a message: either a new one, or one that exists (in `exec`, if that is not NULL). */
struct place {
    CUgraphNode *made;
    CUgraph graph;
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *edges;
    size_t count;
    CUgraphExec exec;
    CUgraphNode node;
};

static CUgraphNode node_of(const struct place *place) {
    return place->made ? *place->made : place->node;
}

/* ---- Kernels -------------------------------------------------------------------------------- */

static CUresult kernel_node(const struct place *place, const CUDA_KERNEL_NODE_PARAMS *wanted) {
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

/* A graph runs later and often: the host's memory in it must be memory that the device can reach. */
static CUresult copy_node(const struct place *place, const CUDA_MEMCPY3D *wanted, CUcontext context) {
    CUDA_MEMCPY3D copy;
    struct cuda_host_sides sides;
    cuda_split_copy(wanted, &copy, &sides);
    if ((sides.from_bytes && !cuda_shared(sides.from, sides.from_bytes))
        || (sides.to_bytes && !cuda_shared(sides.to, sides.to_bytes)))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (place->made)
        return aviaryAddCopyNode(place->made, place->graph, place->dependencies, place->edges, place->count, copy,
                                 sides.from, sides.from_bytes, sides.to, sides.to_bytes, context);
    return aviarySetCopyNode(place->exec, place->node, copy, sides.from, sides.from_bytes, sides.to, sides.to_bytes, context);
}

static CUresult fill_node(const struct place *place, const CUDA_MEMSET_NODE_PARAMS_v2 *fill) {
    if (place->made)
        return aviaryAddFillNode(place->made, place->graph, place->dependencies, place->edges, place->count, *fill);
    return aviarySetFillNode(place->exec, place->node, *fill);
}

/* ---- Host functions ------------------------------------------------------------------------- */

static CUresult host_node(const struct place *place, CUhostFn function, void *data) {
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = place->made ? aviaryAddHostNode(place->made, place->graph, place->dependencies, place->edges,
                                                      place->count, function, data)
                                  : aviarySetHostNode(place->exec, place->node, function, data);
    struct cuda_node *object = status == CUDA_SUCCESS && !place->exec ? cuda_node_of(node_of(place)) : NULL;
    if (object) {
        object->host_function = function;
        object->host_data = data;
    }
    return status;
}

/* The server knows its own functions only; a node that a capture or a clone made is not remembered here. */
CUresult cuda_get_host_node(CUgraphNode node, CUDA_HOST_NODE_PARAMS *wanted) {
    const struct cuda_node *object = cuda_node_of(node);
    CUgraphNodeType type;
    if (!object || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGraphNodeGetType(node, &type);
    if (status != CUDA_SUCCESS)
        return status;
    if (type != CU_GRAPH_NODE_TYPE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object->host_function)
        return CUDA_ERROR_NOT_SUPPORTED;
    *wanted = (CUDA_HOST_NODE_PARAMS){.fn = object->host_function, .userData = object->host_data};
    return CUDA_SUCCESS;
}

/* ---- Every kind ----------------------------------------------------------------------------- */

/* The owner of the child afterwards: the graph has a copy of it, or has it itself. */
static CUresult object_node(const struct place *place, CUgraphNodeType type, CUgraph child,
                            CUgraphChildGraphNodeOwnership ownership, CUevent event) {
    if (place->made)
        return aviaryAddNode(place->made, place->graph, place->dependencies, place->edges, place->count, type, child,
                             ownership, event);
    return aviarySetNode(place->exec, place->node, type, child, ownership, event);
}

static CUresult any_node(const struct place *place, const CUgraphNodeParams *wanted) {
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
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuda_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                       size_t count, const CUgraphNodeParams *wanted) {
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    return any_node(&(struct place){.made = node, .graph = graph, .dependencies = dependencies, .edges = edges, .count = count},
                    wanted);
}

CUresult cuda_set_node(CUgraphNode node, const CUgraphNodeParams *wanted) {
    return any_node(&(struct place){.node = node}, wanted);
}

CUresult cuda_exec_set_node(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *wanted) {
    return exec ? any_node(&(struct place){.exec = exec, .node = node}, wanted) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- The functions for one kind -------------------------------------------------------------- */

CUresult cuda_add_kernel_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *wanted) {
    if (!node || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    return kernel_node(&(struct place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, wanted);
}

CUresult cuda_set_kernel_node(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *wanted) {
    return wanted ? kernel_node(&(struct place){.node = node}, wanted) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_exec_set_kernel_node(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *wanted) {
    return exec && wanted ? kernel_node(&(struct place){.exec = exec, .node = node}, wanted) : CUDA_ERROR_INVALID_VALUE;
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
    return copy_node(&(struct place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, wanted, context);
}

CUresult cuda_set_copy_node(CUgraphNode node, const CUDA_MEMCPY3D *wanted) {
    return wanted ? copy_node(&(struct place){.node = node}, wanted, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_exec_set_copy_node(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *wanted, CUcontext context) {
    return exec && wanted ? copy_node(&(struct place){.exec = exec, .node = node}, wanted, context) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_add_host_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS *wanted) {
    if (!node || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    return host_node(&(struct place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, wanted->fn,
                     wanted->userData);
}

CUresult cuda_set_host_node(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *wanted) {
    return wanted ? host_node(&(struct place){.node = node}, wanted->fn, wanted->userData) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_exec_set_host_node(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *wanted) {
    return exec && wanted ? host_node(&(struct place){.exec = exec, .node = node}, wanted->fn, wanted->userData)
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
