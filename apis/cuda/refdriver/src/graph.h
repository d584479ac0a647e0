/* Graphs: operations with dependencies, made node by node or by capturing streams. */
#ifndef REFDRIVER_GRAPH_H
#define REFDRIVER_GRAPH_H

#include "driver.h"
#include "operation.h"

struct CUgraphNode_st {
    struct object object;
    CUgraph graph;
    struct operation operation;
    CUgraphNode *dependencies;
    size_t count;
    CUgraphNode original; /* what it was cloned from: only compared */
    void **pointers;      /* to the launch's parameters, for who asks */
};

struct CUgraph_st {
    struct object object;
    CUgraphNode *nodes;
    size_t count;
};

CUgraph graph_create(void);
/* A deep copy; NULL where memory is out. */
CUgraph graph_clone(CUgraph graph);
void graph_end(CUgraph graph);
/* Adds a node; takes the operation over in any case. */
CUresult graph_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                   struct operation *operation);
bool node_depends(CUgraphNode node, CUgraphNode on);
CUresult node_add_dependency(CUgraphNode node, CUgraphNode on);
CUgraphNodeType operation_node_type(const struct operation *operation);

/* All nodes, each behind those it depends on; NULL where they go in a circle or memory is out. To be freed. */
CUgraphNode *graph_sorted(CUgraph graph);

/* An operation made from what an application passes for a node (graph_nodes.c). */
CUresult operation_from_kernel(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult operation_from_copy(struct operation *operation, const CUDA_MEMCPY3D *copy);
CUresult operation_from_fill(struct operation *operation, const CUDA_MEMSET_NODE_PARAMS *fill);
CUresult operation_from_host(struct operation *operation, const CUDA_HOST_NODE_PARAMS *host);
CUresult operation_from_event(struct operation *operation, enum operation_kind kind, CUevent event);
CUresult operation_from_graph(struct operation *operation, CUgraph graph);
CUresult operation_from_parameters(struct operation *operation, const CUgraphNodeParams *parameters);

#endif
