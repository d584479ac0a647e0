/* The server's side of nodes that allocate and free memory, run batches of operations on memory, or depend on a condition. */
#include "server.h"
#include "graph_halves.h"
#include <stdlib.h>
#include <string.h>

/* Set once any graph of this process may allocate. */
static int any_allocation;

void cuda_note_graph_allocation(void) {
    __atomic_store_n(&any_allocation, 1, __ATOMIC_RELEASE);
}

static CUresult add_alloc_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                               size_t count, CUmemPoolProps properties, const CUmemAccessDesc *access, size_t access_count,
                               size_t bytes, CUdeviceptr *pointer) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    if (!pointer || !cuda_pool_allowed(&properties))
        return CUDA_ERROR_INVALID_VALUE;
    cuda_note_graph_allocation();
    node.alloc = (CUDA_MEM_ALLOC_NODE_PARAMS_v2){.poolProps = properties, .accessDescs = access, .accessDescCount = access_count,
                                                 .bytesize = bytes};
    CUresult status = cuda_add_node(made, graph, dependencies, edges, count, &node);
    if (status == CUDA_SUCCESS)
        *pointer = node.alloc.dptr;
    return status;
}

void *cuda_add_alloc_node_function(void) {
    return (void *)add_alloc_node;
}

static CUresult get_alloc_node(CUgraphNode node, CUmemPoolProps *properties, size_t capacity, CUmemAccessDesc *access,
                               size_t *access_count, size_t *bytes, CUdeviceptr *pointer) {
    CUDA_MEM_ALLOC_NODE_PARAMS found;
    if (!properties || !access_count || !bytes || !pointer || (capacity && !access))
        return CUDA_ERROR_INVALID_VALUE;
    memset(&found, 0, sizeof found);
    CUresult status = cuGraphMemAllocNodeGetParams(node, &found);
    if (status != CUDA_SUCCESS)
        return status;
    *properties = found.poolProps;
    *access_count = found.accessDescs ? found.accessDescCount : 0;
    for (size_t i = 0; i < *access_count && i < capacity; i++)
        access[i] = found.accessDescs[i];
    *bytes = found.bytesize;
    *pointer = found.dptr;
    return CUDA_SUCCESS;
}

void *cuda_get_alloc_node_function(void) {
    return (void *)get_alloc_node;
}

static CUresult add_free_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                              size_t count, CUdeviceptr pointer) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
    node.free.dptr = pointer;
    return cuda_add_node(made, graph, dependencies, edges, count, &node);
}

void *cuda_add_free_node_function(void) {
    return (void *)add_free_node;
}

/* ---- Batches --------------------------------------------------------------------------------- */

static CUgraphNodeParams batch_parameters(CUcontext context, unsigned int count, const CUstreamBatchMemOpParams *operations,
                                          unsigned int flags) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    node.memOp = (CUDA_BATCH_MEM_OP_NODE_PARAMS_v2){.ctx = context, .count = count, .paramArray = (CUstreamBatchMemOpParams *)operations,
                                                    .flags = flags};
    if (!context)
        cuCtxGetCurrent(&node.memOp.ctx);
    return node;
}

static CUresult add_batch_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                               size_t count, CUcontext context, unsigned int operation_count,
                               const CUstreamBatchMemOpParams *operations, unsigned int flags) {
    CUgraphNodeParams node = batch_parameters(context, operation_count, operations, flags);
    return cuda_add_node(made, graph, dependencies, edges, count, &node);
}

void *cuda_add_batch_node_function(void) {
    return (void *)add_batch_node;
}

static CUresult set_batch_node(CUgraphExec exec, CUgraphNode node, CUcontext context, unsigned int operation_count,
                               const CUstreamBatchMemOpParams *operations, unsigned int flags) {
    CUgraphNodeParams wanted = batch_parameters(context, operation_count, operations, flags);
    return exec ? cuGraphExecNodeSetParams(exec, node, &wanted) : cuGraphNodeSetParams(node, &wanted);
}

void *cuda_set_batch_node_function(void) {
    return (void *)set_batch_node;
}

static CUresult get_batch_node(CUgraphNode node, CUcontext *context, unsigned int capacity, CUstreamBatchMemOpParams *operations,
                               unsigned int *operation_count, unsigned int *flags) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS found;
    if (!context || !operation_count || !flags || (capacity && !operations))
        return CUDA_ERROR_INVALID_VALUE;
    memset(&found, 0, sizeof found);
    CUresult status = cuGraphBatchMemOpNodeGetParams(node, &found);
    if (status != CUDA_SUCCESS)
        return status;
    *context = found.ctx;
    *operation_count = found.paramArray ? found.count : 0;
    *flags = found.flags;
    for (unsigned int i = 0; i < *operation_count && i < capacity; i++)
        operations[i] = found.paramArray[i];
    return CUDA_SUCCESS;
}

void *cuda_get_batch_node_function(void) {
    return (void *)get_batch_node;
}

/* ---- Conditions ------------------------------------------------------------------------------ */

static CUresult add_conditional_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count, CUgraphConditionalHandle handle,
                                     CUgraphConditionalNodeType type, unsigned int size, CUgraph *bodies, CUcontext context) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    if (!size || !bodies)
        return CUDA_ERROR_INVALID_VALUE;
    node.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){.handle = handle, .type = type, .size = size, .ctx = context};
    if (!context)
        cuCtxGetCurrent(&node.conditional.ctx);
    CUresult status = cuda_add_node(made, graph, dependencies, edges, count, &node);
    for (unsigned int i = 0; status == CUDA_SUCCESS && i < size; i++)
        bodies[i] = node.conditional.phGraph_out[i];
    return status;
}

void *cuda_add_conditional_node_function(void) {
    return (void *)add_conditional_node;
}

/* ---- Accounts -------------------------------------------------------------------------------- */

static uint64_t graph_bytes(CUgraph graph, unsigned int depth) {
    enum { MOST_DEPTH = 16 };
    size_t count = 0;
    uint64_t bytes = 0;
    if (depth > MOST_DEPTH || cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return 0;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (!nodes || cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        CUDA_MEM_ALLOC_NODE_PARAMS found;
        CUgraph child;
        if (cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && cuGraphMemAllocNodeGetParams(nodes[i], &found) == CUDA_SUCCESS)
            bytes += found.bytesize;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            bytes += graph_bytes(child, depth + 1);
    }
    free(nodes);
    return bytes;
}

/* Memory that an executable graph is charged with: all that its nodes allocate, which is at least what they need at a time. */
uint64_t cuda_graph_bytes(CUgraph graph) {
    return __atomic_load_n(&any_allocation, __ATOMIC_ACQUIRE) ? graph_bytes(graph, 0) : 0;
}
