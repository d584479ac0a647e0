/* Copies of ordinary memory in graphs, and graphs as the application sees them: graph_halves.c, graph_view.c. */
#ifndef CUDA_GRAPH_HALVES_H
#define CUDA_GRAPH_HALVES_H

#include "cuda_types.h"
#include "messages.h"

/* A list of the driver's, which its user frees. */
struct cuda_nodes {
    CUgraphNode *nodes;
    size_t count;
};
void cuda_free_nodes(struct cuda_nodes *list);
/* The nodes that a node depends on, or that depend on it. */
struct cuda_nodes cuda_list_neighbours(CUgraphNode node, int dependents);

/* True if any half was ever made. */
int cuda_has_halves(void);
/* AVIARY_HALF_GATHER, AVIARY_HALF_SCATTER; 0: the node is the application's own. */
unsigned int cuda_half_kind(CUgraphNode node);
CUgraphNode cuda_half_beside(CUgraphNode node, unsigned int kind);
CUgraphNode cuda_copy_of_half(CUgraphNode half, unsigned int kind);
CUresult cuda_add_with_halves(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                              size_t count, CUgraphNodeParams *copy, aviary_halves told);
CUresult cuda_set_with_halves(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *copy, aviary_halves told);
CUresult cuda_enable_halves(CUgraphExec exec, CUgraphNode node, unsigned int enabled);
void cuda_forget_exec_halves(CUgraphExec exec);
CUresult cuda_captured_graph(CUstream stream, CUgraph *graph);

/* graph_nodes.c: a node behind what the application names. */
CUresult cuda_add_node(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                       size_t count, CUgraphNodeParams *node);

/* The node that edges from, or to, a node of the application's begin or end at. */
CUgraphNode cuda_edge_source(CUgraphNode node);
CUgraphNode cuda_edge_target(CUgraphNode node);
/* The node of the application's that a node belongs to. */
CUgraphNode cuda_seen_node(CUgraphNode node);
/* Edge sources for nodes; to be freed. NULL: there are none to be replaced, or no memory; `status` says. */
CUgraphNode *cuda_edge_sources(const CUgraphNode *nodes, size_t count, CUresult *status);

#endif
