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

/* Objects of the application that a graph, or what was made of it, keeps (user_object.c). */
struct user_reference {
    CUuserObject object;
    size_t count;
};
struct user_references {
    struct user_reference *list;
    size_t count;
};

struct CUgraph_st {
    struct object object;
    CUgraphNode *nodes;
    size_t count;
    struct user_references objects;
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
CUresult operation_from_allocation(struct operation *operation, CUdevice device, size_t size, CUcontext context);
CUdeviceptr graph_memory_start(const struct graph_memory *memory);
CUresult operation_from_free(struct operation *operation, CUdeviceptr address);
CUresult operation_from_batch(struct operation *operation, const CUstreamBatchMemOpParams *list, unsigned count, unsigned flags);
/* Tells where the graphs of the node are. */
CUresult operation_from_conditional(struct operation *operation, CUDA_CONDITIONAL_NODE_PARAMS *parameters);
/* Work before a launch of a graph with such a node. */
CUresult conditional_prepare(const struct operation *operation, CUstream stream);
/* Also tells what the driver chooses: addresses, graphs. */
CUresult operation_from_parameters(struct operation *operation, CUgraphNodeParams *parameters);

bool user_references_add(struct user_references *references, CUuserObject object, size_t count);
/* One more reference to each object. False where memory is out. */
bool user_references_share(struct user_references *to, const struct user_references *from);
void user_references_end(struct user_references *references);

#endif
