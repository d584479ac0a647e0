/* Graphs: their nodes, and copies of ordinary memory in them. */
#ifndef AVIARY_CUDA_GRAPHS_H
#define AVIARY_CUDA_GRAPHS_H
#include "guest/ranges.h"

/* Pointers to each parameter; the values follow. */
struct cuda_node_parameters {
    size_t count;
    void *pointers[];
};

/* graph_nodes.c, graph_memory.c */
/* The place of a node in a message: either a new one, or one that exists (in `exec`, if that is not NULL). */
struct cuda_place {
    CUgraphNode *made;
    CUgraph graph;
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *edges;
    size_t count;
    CUgraphExec exec;
    CUgraphNode node;
};
CUresult cuda_get_kernel_node(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *wanted);
CUresult cuda_alloc_node(const struct cuda_place *place, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *wanted);
CUresult cuda_free_node(const struct cuda_place *place, CUdeviceptr pointer);
CUresult cuda_batch_node(const struct cuda_place *place, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *wanted);
CUresult cuda_conditional_node(const struct cuda_place *place, CUDA_CONDITIONAL_NODE_PARAMS *wanted);

/* graph_copies.c */
CUresult cuda_prepare_graph_copy(const CUDA_MEMCPY3D *wanted, CUDA_MEMCPY3D *copy, struct cuda_host_sides *sides,
                                 aviary_halves *halves);
void cuda_end_preparing(CUgraphExec exec, CUgraphNode node, const aviary_halves *halves, CUresult status);
int cuda_captures_host(CUstream stream);
int cuda_captures_box(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult cuda_capture_box(const CUDA_MEMCPY3D *wanted, CUstream stream);
CUresult cuda_capture_line(CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type, CUdeviceptr from, size_t bytes,
                           CUstream stream);

#endif
