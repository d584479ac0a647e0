/* Nodes that allocate and free memory, run batches of operations on memory, or depend on a condition. What the driver keeps
 * for the application - arrays that it hands out pointers to - is kept here. */
#include "guest/graphs.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 64, MOST_OPERATIONS = 1024 };

/* ---- Memory --------------------------------------------------------------------------------- */

CUresult cuda_alloc_node(const struct cuda_place *place, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *wanted) {
    /* The driver has no such parameters set. */
    if (!place->made)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (wanted->accessDescCount > MOST_DEVICES || (wanted->accessDescCount && !wanted->accessDescs))
        return CUDA_ERROR_INVALID_VALUE;
    return aviaryAddAllocNode(place->made, place->graph, place->dependencies, place->edges, place->count, wanted->poolProps,
                              wanted->accessDescs, wanted->accessDescCount, wanted->bytesize, &wanted->dptr);
}

CUresult cuda_free_node(const struct cuda_place *place, CUdeviceptr pointer) {
    if (!place->made)
        return CUDA_ERROR_NOT_SUPPORTED;
    return aviaryAddFreeNode(place->made, place->graph, place->dependencies, place->edges, place->count, pointer);
}

CUresult cuda_add_alloc_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                             CUDA_MEM_ALLOC_NODE_PARAMS *wanted) {
    CUDA_MEM_ALLOC_NODE_PARAMS_v2 newer;
    if (!node || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&newer, wanted, sizeof newer);
    CUresult status = cuda_alloc_node(
        &(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, &newer);
    if (status == CUDA_SUCCESS)
        wanted->dptr = newer.dptr;
    return status;
}

CUresult cuda_add_free_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            CUdeviceptr pointer) {
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_free_node(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count},
                          pointer);
}

/* The list of devices is valid as long as the node is. */
CUresult cuda_get_alloc_node(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *found) {
    struct cuda_node *object = cuda_node_of(node);
    CUmemAccessDesc access[MOST_DEVICES];
    if (!found || !object)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEM_ALLOC_NODE_PARAMS told = {0};
    CUresult status = aviaryGetAllocNode(node, &told.poolProps, MOST_DEVICES, access, &told.accessDescCount, &told.bytesize,
                                         &told.dptr);
    if (status != CUDA_SUCCESS)
        return status;
    if (told.accessDescCount > MOST_DEVICES)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (told.accessDescCount) {
        void *kept = malloc(told.accessDescCount * sizeof *access);
        if (!kept)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(kept, access, told.accessDescCount * sizeof *access);
        free(__atomic_exchange_n(&object->handed_out, kept, __ATOMIC_ACQ_REL));
        told.accessDescs = kept;
    }
    *found = told;
    return CUDA_SUCCESS;
}

/* ---- Batches -------------------------------------------------------------------------------- */

CUresult cuda_batch_node(const struct cuda_place *place, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *wanted) {
    if (!wanted->count || !wanted->paramArray || wanted->count > MOST_OPERATIONS)
        return CUDA_ERROR_INVALID_VALUE;
    if (place->made)
        return aviaryAddBatchNode(place->made, place->graph, place->dependencies, place->edges, place->count, wanted->ctx,
                                  wanted->count, wanted->paramArray, wanted->flags);
    return aviarySetBatchNode(place->exec, place->node, wanted->ctx, wanted->count, wanted->paramArray, wanted->flags);
}

static CUresult older_batch(const struct cuda_place *place, const CUDA_BATCH_MEM_OP_NODE_PARAMS *wanted) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 newer;
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&newer, wanted, sizeof newer);
    return cuda_batch_node(place, &newer);
}

CUresult cuda_add_batch_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                             const CUDA_BATCH_MEM_OP_NODE_PARAMS *wanted) {
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    return older_batch(&(struct cuda_place){.made = node, .graph = graph, .dependencies = dependencies, .count = count}, wanted);
}

CUresult cuda_set_batch_node(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *wanted) {
    return older_batch(&(struct cuda_place){.node = node}, wanted);
}

CUresult cuda_exec_set_batch_node(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *wanted) {
    return exec ? older_batch(&(struct cuda_place){.exec = exec, .node = node}, wanted) : CUDA_ERROR_INVALID_VALUE;
}

/* The list of operations is valid as long as the node is, or until it is set. */
CUresult cuda_get_batch_node(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *found) {
    struct cuda_node *object = cuda_node_of(node);
    CUstreamBatchMemOpParams *operations = calloc(MOST_OPERATIONS, sizeof *operations);
    CUDA_BATCH_MEM_OP_NODE_PARAMS told = {0};
    CUresult status = !operations ? CUDA_ERROR_OUT_OF_MEMORY : !found || !object ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (status == CUDA_SUCCESS)
        status = aviaryGetBatchNode(node, &told.ctx, MOST_OPERATIONS, operations, &told.count, &told.flags);
    if (status == CUDA_SUCCESS && told.count > MOST_OPERATIONS)
        status = CUDA_ERROR_NOT_SUPPORTED;
    if (status != CUDA_SUCCESS) {
        free(operations);
        return status;
    }
    free(__atomic_exchange_n(&object->handed_out, (void *)operations, __ATOMIC_ACQ_REL));
    told.paramArray = operations;
    *found = told;
    return CUDA_SUCCESS;
}

/* ---- Conditions ----------------------------------------------------------------------------- */

/* The list of graphs is valid as long as the node is. */
CUresult cuda_conditional_node(const struct cuda_place *place, CUDA_CONDITIONAL_NODE_PARAMS *wanted) {
    enum { MOST_BODIES = 4096 };
    if (!place->made)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!wanted->size || wanted->size > MOST_BODIES)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph *bodies = calloc(wanted->size, sizeof *bodies);
    if (!bodies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = aviaryAddConditionalNode(place->made, place->graph, place->dependencies, place->edges, place->count,
                                               wanted->handle, wanted->type, wanted->size, bodies, wanted->ctx);
    struct cuda_node *object = status == CUDA_SUCCESS ? cuda_node_of(*place->made) : NULL;
    if (status != CUDA_SUCCESS) {
        free(bodies);
        return status;
    }
    if (object)
        free(__atomic_exchange_n(&object->handed_out, (void *)bodies, __ATOMIC_ACQ_REL));
    wanted->phGraph_out = bodies;
    return CUDA_SUCCESS;
}
