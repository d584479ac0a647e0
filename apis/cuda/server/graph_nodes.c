/* The server's side of the messages for nodes of graphs, with the driver's own functions. */
#include "server.h"
#include "graph_halves.h"
#include <stdlib.h>
#include <string.h>

/* ---- Kernels -------------------------------------------------------------------------------- */

static CUresult kernel_parameters(CUgraphNodeParams *node, CUfunction function, aviary_launch_shape shape, void **extra,
                                  size_t bytes) {
    const struct cuda_layout *layout = cuda_layout_of(function);
    if (!layout || bytes < layout->bytes || (bytes && !extra[1]))
        return CUDA_ERROR_INVALID_VALUE;
    *node = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_KERNEL};
    node->kernel = (CUDA_KERNEL_NODE_PARAMS_v3){
        .func = function, .gridDimX = shape.grid[0], .gridDimY = shape.grid[1], .gridDimZ = shape.grid[2],
        .blockDimX = shape.block[0], .blockDimY = shape.block[1], .blockDimZ = shape.block[2],
        .sharedMemBytes = shape.shared_bytes, .extra = bytes ? extra : NULL,
    };
    return CUDA_SUCCESS;
}

CUresult cuda_add_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                       size_t count, CUgraphNodeParams *node) {
    CUresult status;
    CUgraphNode *sources = cuda_edge_sources(dependencies, count, &status);
    if (status == CUDA_SUCCESS)
        status = cuGraphAddNode_v2(made, graph, sources ? sources : dependencies, edges, count, node);
    free(sources);
    return status;
}

static CUresult set(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *wanted) {
    return exec ? cuGraphExecNodeSetParams(exec, node, wanted) : cuGraphNodeSetParams(node, wanted);
}

static CUresult add_kernel_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *edges, size_t count, CUfunction function,
                                aviary_launch_shape shape, const void *parameters, size_t bytes) {
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    CUgraphNodeParams node;
    CUresult status = kernel_parameters(&node, function, shape, extra, bytes);
    return status == CUDA_SUCCESS ? cuda_add_node(made, graph, dependencies, edges, count, &node) : status;
}

void *cuda_add_kernel_node_function(void) {
    return (void *)add_kernel_node;
}

static CUresult set_kernel_node(CUgraphExec exec, CUgraphNode node, CUfunction function, aviary_launch_shape shape,
                                const void *parameters, size_t bytes) {
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    CUgraphNodeParams wanted;
    CUresult status = kernel_parameters(&wanted, function, shape, extra, bytes);
    return status == CUDA_SUCCESS ? set(exec, node, &wanted) : status;
}

void *cuda_set_kernel_node_function(void) {
    return (void *)set_kernel_node;
}

/* The buffer of packed parameters, wherever it is in the list: a driver may list its size first. */
static const void *packed_buffer(void **extra) {
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            return extra[1];
    return NULL;
}

/* The driver points at each parameter, or at the buffer that the node was made with. */
static CUresult get_kernel_node(CUgraphNode node, CUfunction *function, CUkernel *kernel, CUcontext *context,
                                aviary_launch_shape *shape, unsigned int capacity, unsigned char *parameters,
                                unsigned int *bytes) {
    CUDA_KERNEL_NODE_PARAMS found;
    memset(&found, 0, sizeof found);
    CUresult status = cuGraphKernelNodeGetParams_v2(node, &found);
    if (status != CUDA_SUCCESS)
        return status;
    CUfunction code = found.func;
    if (!code && found.kern)
        status = cuKernelGetFunction(&code, found.kern);
    const struct cuda_layout *layout = status == CUDA_SUCCESS ? cuda_layout_of(code) : NULL;
    if (!layout || layout->bytes > capacity)
        return CUDA_ERROR_NOT_SUPPORTED;
    memset(parameters, 0, layout->bytes);
    if (found.kernelParams) {
        for (uint32_t i = 0; i < layout->count; i++)
            memcpy(parameters + layout->offset[i], found.kernelParams[i], layout->size[i]);
    } else if (layout->count) {
        const void *buffer = packed_buffer(found.extra);
        if (!buffer)
            return CUDA_ERROR_NOT_SUPPORTED;
        memcpy(parameters, buffer, layout->bytes);
    }
    *function = found.func;
    *kernel = found.kern;
    *context = found.ctx;
    *shape = (aviary_launch_shape){{found.gridDimX, found.gridDimY, found.gridDimZ},
                                   {found.blockDimX, found.blockDimY, found.blockDimZ},
                                   found.sharedMemBytes,
                                   0};
    *bytes = layout->bytes;
    return CUDA_SUCCESS;
}

void *cuda_get_kernel_node_function(void) {
    return (void *)get_kernel_node;
}

/* ---- Copies and fills ------------------------------------------------------------------------ */

static CUresult copy_parameters(CUgraphNodeParams *node, const CUDA_MEMCPY3D *copy, void *from, size_t from_bytes,
                                void *to, size_t to_bytes, CUcontext context) {
    *node = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    node->memcpy.copyParams = *copy;
    node->memcpy.copyCtx = context;
    if (!context)
        cuCtxGetCurrent(&node->memcpy.copyCtx);
    return cuda_put_sides(&node->memcpy.copyParams, from, from_bytes, to, to_bytes);
}

static CUresult add_copy_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies,
                              const CUgraphEdgeData *edges, size_t count, CUDA_MEMCPY3D copy, void *from,
                              size_t from_bytes, void *to, size_t to_bytes, CUcontext context, aviary_halves halves) {
    CUgraphNodeParams node;
    CUresult status = copy_parameters(&node, &copy, from, from_bytes, to, to_bytes, context);
    if (status != CUDA_SUCCESS)
        return status;
    if (!halves.kinds)
        return cuda_add_node(made, graph, dependencies, edges, count, &node);
    CUgraphNode *sources = cuda_edge_sources(dependencies, count, &status);
    if (status == CUDA_SUCCESS)
        status = cuda_add_with_halves(made, graph, sources ? sources : dependencies, edges, count, &node, halves);
    free(sources);
    return status;
}

void *cuda_add_copy_node_function(void) {
    return (void *)add_copy_node;
}

static CUresult set_copy_node(CUgraphExec exec, CUgraphNode node, CUDA_MEMCPY3D copy, void *from, size_t from_bytes,
                              void *to, size_t to_bytes, CUcontext context, aviary_halves halves) {
    CUgraphNodeParams wanted;
    CUresult status = copy_parameters(&wanted, &copy, from, from_bytes, to, to_bytes, context);
    return status == CUDA_SUCCESS ? cuda_set_with_halves(exec, node, &wanted, halves) : status;
}

void *cuda_set_copy_node_function(void) {
    return (void *)set_copy_node;
}

static CUgraphNodeParams fill_parameters(CUDA_MEMSET_NODE_PARAMS_v2 fill) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    node.memset = fill;
    if (!fill.ctx)
        cuCtxGetCurrent(&node.memset.ctx);
    return node;
}

static CUresult add_fill_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies,
                              const CUgraphEdgeData *edges, size_t count, CUDA_MEMSET_NODE_PARAMS_v2 fill) {
    CUgraphNodeParams node = fill_parameters(fill);
    if (!cuda_may_touch_rows(fill.dst, fill.pitch, fill.width, fill.elementSize, fill.height))
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_add_node(made, graph, dependencies, edges, count, &node);
}

void *cuda_add_fill_node_function(void) {
    return (void *)add_fill_node;
}

static CUresult set_fill_node(CUgraphExec exec, CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v2 fill) {
    CUgraphNodeParams wanted = fill_parameters(fill);
    if (!cuda_may_touch_rows(fill.dst, fill.pitch, fill.width, fill.elementSize, fill.height))
        return CUDA_ERROR_INVALID_VALUE;
    return set(exec, node, &wanted);
}

void *cuda_set_fill_node_function(void) {
    return (void *)set_fill_node;
}

/* ---- Host functions -------------------------------------------------------------------------- */

/* A function of the application's as the driver calls it, and the application's own names for it. As long as the session: an executable graph
 * may be given one that no graph has. */
struct host_call {
    CUhostFn function;
    void *data;
    aviary_host_call call;
};

static void CUDA_CB call_host(void *data) {
    const struct host_call *host = data;
    host->function(host->data);
}

static struct host_call *new_call(CUhostFn function, void *data, aviary_host_call call) {
    struct host_call *host = malloc(sizeof *host);
    if (host)
        *host = (struct host_call){function, data, call};
    return host;
}

static CUresult host_parameters(CUgraphNodeParams *node, CUhostFn function, void *data, aviary_host_call call) {
    struct host_call *host = function ? new_call(function, data, call) : NULL;
    if (!host)
        return function ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *node = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_HOST};
    node->host = (CUDA_HOST_NODE_PARAMS_v2){.fn = call_host, .userData = host};
    return CUDA_SUCCESS;
}

static CUresult add_host_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies,
                              const CUgraphEdgeData *edges, size_t count, CUhostFn function, void *data,
                              aviary_host_call call) {
    CUgraphNodeParams node;
    CUresult status = host_parameters(&node, function, data, call);
    if (status != CUDA_SUCCESS)
        return status;
    status = cuda_add_node(made, graph, dependencies, edges, count, &node);
    if (status != CUDA_SUCCESS)
        free(node.host.userData);
    return status;
}

void *cuda_add_host_node_function(void) {
    return (void *)add_host_node;
}

static CUresult set_host_node(CUgraphExec exec, CUgraphNode node, CUhostFn function, void *data, aviary_host_call call) {
    CUgraphNodeParams wanted;
    CUresult status = host_parameters(&wanted, function, data, call);
    if (status != CUDA_SUCCESS)
        return status;
    status = set(exec, node, &wanted);
    if (status != CUDA_SUCCESS)
        free(wanted.host.userData);
    return status;
}

void *cuda_set_host_node_function(void) {
    return (void *)set_host_node;
}

static CUresult capture_host(CUstream stream, CUhostFn function, void *data, aviary_host_call call) {
    struct host_call *host = function ? new_call(function, data, call) : NULL;
    if (!host)
        return function ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuLaunchHostFunc(stream, call_host, host);
    if (status != CUDA_SUCCESS)
        free(host);
    return status;
}

void *cuda_capture_host_function(void) {
    return (void *)capture_host;
}

static CUresult get_host_node(CUgraphNode node, aviary_host_call *call) {
    CUDA_HOST_NODE_PARAMS host;
    if (!call)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGraphHostNodeGetParams(node, &host);
    if (status == CUDA_SUCCESS && host.fn != call_host)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (status == CUDA_SUCCESS)
        *call = ((const struct host_call *)host.userData)->call;
    return status;
}

void *cuda_get_host_node_function(void) {
    return (void *)get_host_node;
}

/* ---- Other graphs, events --------------------------------------------------------------------- */

/* The kinds whose parameters are objects; no other kind is taken from a guest here. */
static CUresult object_parameters(CUgraphNodeParams *node, CUgraphNodeType type, CUgraph child,
                                  CUgraphChildGraphNodeOwnership ownership, CUevent event) {
    *node = (CUgraphNodeParams){.type = type};
    switch (type) {
    case CU_GRAPH_NODE_TYPE_GRAPH:
        if (ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE && ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
            return CUDA_ERROR_INVALID_VALUE;
        node->graph.graph = child;
        node->graph.ownership = ownership;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: node->eventWait.event = event; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: node->eventRecord.event = event; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult add_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                         size_t count, CUgraphNodeType type, CUgraph child,
                                  CUgraphChildGraphNodeOwnership ownership, CUevent event) {
    CUgraphNodeParams node;
    CUresult status = object_parameters(&node, type, child, ownership, event);
    return status == CUDA_SUCCESS ? cuda_add_node(made, graph, dependencies, edges, count, &node) : status;
}

void *cuda_add_node_function(void) {
    return (void *)add_node;
}

static CUresult set_node(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUgraph child,
                                  CUgraphChildGraphNodeOwnership ownership, CUevent event) {
    CUgraphNodeParams wanted;
    CUresult status = object_parameters(&wanted, type, child, ownership, event);
    return status == CUDA_SUCCESS ? set(exec, node, &wanted) : status;
}

void *cuda_set_node_function(void) {
    return (void *)set_node;
}
