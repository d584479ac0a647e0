/* Graphs as the application made them: without the host functions that belong to copies of ordinary memory
 * (graph_halves.c). An edge to such a copy is one to its first half, an edge from it is one from its last. */
#include "server.h"
#include "graph_halves.h"
#include <stdlib.h>
#include <string.h>

void cuda_free_nodes(struct cuda_nodes *list) {
    free(list->nodes);
    *list = (struct cuda_nodes){NULL, 0};
}

/* The driver wants arrays for edges' data wherever an edge has any. */
struct cuda_nodes cuda_list_neighbours(CUgraphNode node, int dependents) {
    struct cuda_nodes list = {NULL, 0};
    CUresult (*ask)(CUgraphNode, CUgraphNode *, CUgraphEdgeData *, size_t *) =
        dependents ? cuGraphNodeGetDependentNodes_v2 : cuGraphNodeGetDependencies_v2;
    if (ask(node, NULL, NULL, &list.count) != CUDA_SUCCESS || !list.count)
        return (struct cuda_nodes){NULL, 0};
    list.nodes = calloc(list.count, sizeof *list.nodes);
    CUgraphEdgeData *edges = calloc(list.count, sizeof *edges);
    if (!list.nodes || !edges || ask(node, list.nodes, edges, &list.count) != CUDA_SUCCESS)
        cuda_free_nodes(&list);
    free(edges);
    return list;
}

CUgraphNode cuda_edge_source(CUgraphNode node) {
    CUgraphNode half = cuda_half_beside(node, AVIARY_HALF_SCATTER);
    return half ? half : node;
}

CUgraphNode cuda_edge_target(CUgraphNode node) {
    CUgraphNode half = cuda_half_beside(node, AVIARY_HALF_GATHER);
    return half ? half : node;
}

CUgraphNode cuda_seen_node(CUgraphNode node) {
    unsigned int kind = cuda_has_halves() ? cuda_half_kind(node) : 0;
    CUgraphNode copy = kind ? cuda_copy_of_half(node, kind) : node;
    return copy ? copy : node;
}

static CUgraphNode *translated(const CUgraphNode *nodes, size_t count, CUresult *status, CUgraphNode (*translate)(CUgraphNode)) {
    *status = CUDA_SUCCESS;
    if (!nodes || !count || !cuda_has_halves())
        return NULL;
    CUgraphNode *list = calloc(count, sizeof *list);
    if (!list)
        *status = CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; list && i < count; i++)
        list[i] = translate(nodes[i]);
    return list;
}

CUgraphNode *cuda_edge_sources(const CUgraphNode *nodes, size_t count, CUresult *status) {
    return translated(nodes, count, status, cuda_edge_source);
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* As the driver hands lists out: without an array only how many there are, else as many as there is room for, the rest
 * NULL. */
static CUresult hand_out(const struct cuda_nodes *list, CUgraphNode *nodes, size_t *count) {
    size_t room = nodes ? *count : 0;
    for (size_t i = 0; i < room; i++)
        nodes[i] = i < list->count ? list->nodes[i] : NULL;
    if (!nodes || list->count < room)
        *count = list->count;
    return CUDA_SUCCESS;
}

/* All nodes, or the roots, of the driver's graph. */
static CUresult list_nodes(CUgraph graph, int roots, struct cuda_nodes *list) {
    CUresult (*ask)(CUgraph, CUgraphNode *, size_t *) = roots ? cuGraphGetRootNodes : cuGraphGetNodes;
    *list = (struct cuda_nodes){NULL, 0};
    CUresult status = ask(graph, NULL, &list->count);
    if (status != CUDA_SUCCESS || !list->count)
        return status;
    list->nodes = calloc(list->count, sizeof *list->nodes);
    status = list->nodes ? ask(graph, list->nodes, &list->count) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status != CUDA_SUCCESS)
        cuda_free_nodes(list);
    return status;
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    struct cuda_nodes list;
    size_t kept = 0;
    if (!cuda_has_halves() || !count)
        return cuGraphGetNodes(graph, nodes, count);
    CUresult status = list_nodes(graph, 0, &list);
    if (status != CUDA_SUCCESS)
        return status;
    for (size_t i = 0; i < list.count; i++)
        if (!cuda_half_kind(list.nodes[i]))
            list.nodes[kept++] = list.nodes[i];
    list.count = kept;
    status = hand_out(&list, nodes, count);
    cuda_free_nodes(&list);
    return status;
}

void *cuda_get_nodes_function(void) {
    return (void *)get_nodes;
}

static CUresult get_root_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    struct cuda_nodes list;
    if (!cuda_has_halves() || !count)
        return cuGraphGetRootNodes(graph, nodes, count);
    CUresult status = list_nodes(graph, 1, &list);
    if (status != CUDA_SUCCESS)
        return status;
    for (size_t i = 0; i < list.count; i++)
        list.nodes[i] = cuda_seen_node(list.nodes[i]);
    status = hand_out(&list, nodes, count);
    cuda_free_nodes(&list);
    return status;
}

void *cuda_get_root_nodes_function(void) {
    return (void *)get_root_nodes;
}

static CUresult get_neighbours(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count, int dependents) {
    CUgraphNode end = dependents ? cuda_edge_source(node) : cuda_edge_target(node);
    CUresult status = dependents ? cuGraphNodeGetDependentNodes_v2(end, nodes, edges, count)
                                 : cuGraphNodeGetDependencies_v2(end, nodes, edges, count);
    for (size_t i = 0; status == CUDA_SUCCESS && cuda_has_halves() && nodes && i < *count; i++)
        nodes[i] = nodes[i] ? cuda_seen_node(nodes[i]) : NULL;
    return status;
}

static CUresult get_dependencies(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count) {
    return get_neighbours(node, nodes, edges, count, 0);
}

void *cuda_get_dependencies_function(void) {
    return (void *)get_dependencies;
}

static CUresult get_dependents(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count) {
    return get_neighbours(node, nodes, edges, count, 1);
}

void *cuda_get_dependents_function(void) {
    return (void *)get_dependents;
}

/* Edges between a copy and its halves are none; the others begin and end at the copies. */
static CUresult get_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count) {
    if (!cuda_has_halves() || !count)
        return cuGraphGetEdges_v2(graph, from, to, edges, count);
    struct cuda_nodes sources = {NULL, 0}, targets = {NULL, 0};
    size_t all = 0, kept = 0;
    if (!from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &all);
    CUgraphEdgeData *data = calloc(all + 1, sizeof *data);
    sources.nodes = calloc(all + 1, sizeof *sources.nodes);
    targets.nodes = calloc(all + 1, sizeof *targets.nodes);
    if (status == CUDA_SUCCESS && (!data || !sources.nodes || !targets.nodes))
        status = CUDA_ERROR_OUT_OF_MEMORY;
    if (status == CUDA_SUCCESS && all)
        status = cuGraphGetEdges_v2(graph, sources.nodes, targets.nodes, data, &all);
    for (size_t i = 0; status == CUDA_SUCCESS && i < all; i++) {
        if (cuda_half_kind(sources.nodes[i]) == AVIARY_HALF_GATHER || cuda_half_kind(targets.nodes[i]) == AVIARY_HALF_SCATTER)
            continue;
        sources.nodes[kept] = cuda_seen_node(sources.nodes[i]);
        targets.nodes[kept] = cuda_seen_node(targets.nodes[i]);
        data[kept++] = data[i];
    }
    if (status == CUDA_SUCCESS) {
        size_t room = from ? *count : 0, told = *count;
        sources.count = targets.count = kept;
        hand_out(&sources, from, &told);
        hand_out(&targets, to, count);
        for (size_t i = 0; edges && i < room; i++) {
            if (i < kept)
                edges[i] = data[i];
            else
                memset(&edges[i], 0, sizeof edges[i]);
        }
    }
    free(data);
    cuda_free_nodes(&sources);
    cuda_free_nodes(&targets);
    return status;
}

void *cuda_get_edges_function(void) {
    return (void *)get_edges;
}

/* ---- Changes --------------------------------------------------------------------------------- */

static CUresult change_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges,
                             size_t count, int add) {
    CUresult status, other;
    CUgraphNode *sources = translated(from, count, &status, cuda_edge_source);
    CUgraphNode *targets = translated(to, count, &other, cuda_edge_target);
    if (status == CUDA_SUCCESS)
        status = other;
    if (status == CUDA_SUCCESS) {
        from = sources ? sources : from;
        to = targets ? targets : to;
        status = add ? cuGraphAddDependencies_v2(graph, from, to, edges, count)
                     : cuGraphRemoveDependencies_v2(graph, from, to, edges, count);
    }
    free(sources);
    free(targets);
    return status;
}

static CUresult add_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges,
                                 size_t count) {
    return change_edges(graph, from, to, edges, count, 1);
}

void *cuda_add_dependencies_function(void) {
    return (void *)add_dependencies;
}

static CUresult remove_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                    const CUgraphEdgeData *edges, size_t count) {
    return change_edges(graph, from, to, edges, count, 0);
}

void *cuda_remove_dependencies_function(void) {
    return (void *)remove_dependencies;
}

static CUresult destroy_node(CUgraphNode node) {
    CUgraphNode gather = cuda_half_beside(node, AVIARY_HALF_GATHER), scatter = cuda_half_beside(node, AVIARY_HALF_SCATTER);
    CUresult status = cuGraphDestroyNode(node);
    if (status == CUDA_SUCCESS && gather)
        cuGraphDestroyNode(gather);
    if (status == CUDA_SUCCESS && scatter)
        cuGraphDestroyNode(scatter);
    return status;
}

void *cuda_destroy_node_function(void) {
    return (void *)destroy_node;
}

static CUresult set_enabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    CUresult status = cuGraphNodeSetEnabled(exec, node, enabled);
    return status == CUDA_SUCCESS ? cuda_enable_halves(exec, node, enabled) : status;
}

void *cuda_set_enabled_function(void) {
    return (void *)set_enabled;
}

static CUresult update_exec(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *information) {
    CUresult status = cuGraphExecUpdate_v2(exec, graph, information);
    if (status == CUDA_SUCCESS)
        cuda_forget_exec_halves(exec);
    if (information && cuda_has_halves()) {
        information->errorNode = information->errorNode ? cuda_seen_node(information->errorNode) : NULL;
        information->errorFromNode = information->errorFromNode ? cuda_seen_node(information->errorFromNode) : NULL;
    }
    return status;
}

void *cuda_update_exec_function(void) {
    return (void *)update_exec;
}

static CUresult destroy_exec(CUgraphExec exec) {
    CUresult status = cuGraphExecDestroy(exec);
    if (status == CUDA_SUCCESS)
        cuda_forget_exec_halves(exec);
    return status;
}

void *cuda_destroy_exec_function(void) {
    return (void *)destroy_exec;
}

/* ---- Captures -------------------------------------------------------------------------------- */

static CUresult update_dependencies(CUstream stream, CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
                                    unsigned int flags) {
    CUresult status;
    CUgraphNode *sources = cuda_edge_sources(dependencies, count, &status);
    if (status == CUDA_SUCCESS)
        status = cuStreamUpdateCaptureDependencies_v2(stream, sources ? sources : dependencies, edges, count, flags);
    free(sources);
    return status;
}

void *cuda_update_capture_dependencies_function(void) {
    return (void *)update_dependencies;
}
