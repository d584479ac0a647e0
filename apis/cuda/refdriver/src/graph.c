#include "graph.h"

#include <stdlib.h>
#include <string.h>

static void destroy_node(void *object)
{
    CUgraphNode node = object;

    operation_clear(&node->operation);
    free(node->dependencies);
    free(node->pointers);
}

static void destroy_graph(void *object) { free(((CUgraph)object)->nodes); }

CUgraph graph_create(void) { return object_new(KIND_GRAPH, sizeof(struct CUgraph_st), destroy_graph); }

void graph_end(CUgraph graph)
{
    for (size_t i = 0; i < graph->count; i++)
        object_end(graph->nodes[i]);
    graph->count = 0;
    user_references_end(&graph->objects);
    object_end(graph);
}

bool node_depends(CUgraphNode node, CUgraphNode on)
{
    for (size_t i = 0; i < node->count; i++)
        if (node->dependencies[i] == on)
            return true;
    return false;
}

CUresult node_add_dependency(CUgraphNode node, CUgraphNode on)
{
    CUgraphNode *grown;

    if (node_depends(node, on))
        return CUDA_SUCCESS;
    grown = realloc(node->dependencies, (node->count + 1) * sizeof(*grown));
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->dependencies = grown;
    node->dependencies[node->count++] = on;
    return CUDA_SUCCESS;
}

static CUresult check_dependencies(CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    if (count && !dependencies)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!object_check(dependencies[i], KIND_NODE) || dependencies[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult graph_add(CUgraphNode *result, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                   struct operation *operation)
{
    CUresult error = check_dependencies(graph, dependencies, count);
    CUgraphNode node = error == CUDA_SUCCESS ? object_new(KIND_NODE, sizeof(*node), destroy_node) : NULL;
    CUgraphNode *nodes = node ? realloc(graph->nodes, (graph->count + 1) * sizeof(*nodes)) : NULL;

    if (!nodes) {
        operation_clear(operation);
        if (node) {
            node->object.destroy = NULL;
            object_end(node);
        }
        return error == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : error;
    }
    graph->nodes = nodes;
    node->operation = *operation;
    node->graph = graph;
    for (size_t i = 0; i < count && error == CUDA_SUCCESS; i++)
        error = node_add_dependency(node, dependencies[i]);
    if (error != CUDA_SUCCESS) {
        object_end(node);
        return error;
    }
    nodes[graph->count++] = node;
    *result = node;
    return CUDA_SUCCESS;
}

static CUgraphNode find_clone(CUgraph clone, CUgraphNode original)
{
    for (size_t i = 0; i < clone->count; i++)
        if (clone->nodes[i]->original == original)
            return clone->nodes[i];
    return NULL;
}

CUgraph graph_clone(CUgraph graph)
{
    CUgraph clone = graph_create();
    CUresult result = clone && user_references_share(&clone->objects, &graph->objects) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        struct operation operation;
        CUgraphNode node;

        if (!operation_duplicate(&operation, &graph->nodes[i]->operation))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        else
            result = graph_add(&node, clone, NULL, 0, &operation);
        if (result == CUDA_SUCCESS)
            node->original = graph->nodes[i];
    }
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        for (size_t j = 0; j < graph->nodes[i]->count && result == CUDA_SUCCESS; j++)
            result = node_add_dependency(clone->nodes[i], find_clone(clone, graph->nodes[i]->dependencies[j]));
    if (result != CUDA_SUCCESS && clone) {
        graph_end(clone);
        return NULL;
    }
    return clone;
}

CUgraphNode *graph_sorted(CUgraph graph)
{
    CUgraphNode *sorted = calloc(graph->count + 1, sizeof(*sorted));
    size_t count = 0, before;
    bool *done = calloc(graph->count + 1, sizeof(*done));

    do {
        before = count;
        for (size_t i = 0; sorted && done && i < graph->count; i++) {
            CUgraphNode node = graph->nodes[i];
            bool ready = !done[i];
            for (size_t d = 0; d < node->count && ready; d++) {
                ready = false;
                for (size_t j = 0; j < count && !ready; j++)
                    ready = sorted[j] == node->dependencies[d];
            }
            if (ready) {
                sorted[count++] = node;
                done[i] = true;
            }
        }
    } while (count > before);
    free(done);
    if (count == graph->count)
        return sorted;
    free(sorted);
    return NULL;
}

/* --- the driver's functions --- */

#define GRAPH_OR_FAIL(graph)                   \
    do {                                       \
        if (!object_check(graph, KIND_GRAPH))  \
            return CUDA_ERROR_INVALID_VALUE;   \
    } while (0)
#define NODE_OR_FAIL(node)                     \
    do {                                       \
        if (!object_check(node, KIND_NODE))    \
            return CUDA_ERROR_INVALID_VALUE;   \
    } while (0)

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = graph_create();
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    GRAPH_OR_FAIL(graph);
    graph_end(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
    GRAPH_OR_FAIL(graph);
    if (!clone)
        return CUDA_ERROR_INVALID_VALUE;
    *clone = graph_clone(graph);
    return *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *node, CUgraphNode original, CUgraph clone)
{
    GRAPH_OR_FAIL(clone);
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    *node = find_clone(clone, original);
    return *node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUgraphNodeType operation_node_type(const struct operation *operation)
{
    static const CUgraphNodeType types[] = {
        [OPERATION_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,          [OPERATION_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [OPERATION_FILL] = CU_GRAPH_NODE_TYPE_MEMSET,          [OPERATION_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [OPERATION_HOST] = CU_GRAPH_NODE_TYPE_HOST,            [OPERATION_CALLBACK] = CU_GRAPH_NODE_TYPE_HOST,
        [OPERATION_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,  [OPERATION_WAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [OPERATION_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE,        [OPERATION_WRITE_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [OPERATION_WAIT_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, [OPERATION_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH,
        [OPERATION_ALLOCATE] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,   [OPERATION_BATCH] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [OPERATION_CONDITIONAL] = CU_GRAPH_NODE_TYPE_CONDITIONAL,
    };

    return types[operation->kind];
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    NODE_OR_FAIL(node);
    if (!type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = operation_node_type(&node->operation);
    return CUDA_SUCCESS;
}

/* Lists go out as the driver does it: without an array only the count, else up to *count, the rest as NULL. */
struct list {
    CUgraphNode *nodes;
    size_t room, count;
};

static void list_add(struct list *list, CUgraphNode node)
{
    if (list->nodes && list->count < list->room)
        list->nodes[list->count] = node;
    list->count++;
}

static void list_end(struct list *list, size_t *count)
{
    for (size_t i = list->count; list->nodes && i < list->room; i++)
        list->nodes[i] = NULL;
    if (!list->nodes || list->count < *count)
        *count = list->count;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    struct list list = {nodes, nodes && count ? *count : 0, 0};

    GRAPH_OR_FAIL(graph);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++)
        list_add(&list, graph->nodes[i]);
    list_end(&list, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    struct list list = {nodes, nodes && count ? *count : 0, 0};

    GRAPH_OR_FAIL(graph);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++)
        if (!graph->nodes[i]->count)
            list_add(&list, graph->nodes[i]);
    list_end(&list, count);
    return CUDA_SUCCESS;
}

/* Edges carry no data here: all of them wait for the whole node. */
static void clear_data(CUgraphEdgeData *data, size_t count)
{
    if (data)
        memset(data, 0, count * sizeof(*data));
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    struct list sources = {from, from && count ? *count : 0, 0}, targets = {to, to && count ? *count : 0, 0};

    GRAPH_OR_FAIL(graph);
    if (!count || !from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    clear_data(from ? data : NULL, *count);
    for (size_t i = 0; i < graph->count; i++)
        for (size_t d = 0; d < graph->nodes[i]->count; d++) {
            list_add(&sources, graph->nodes[i]->dependencies[d]);
            list_add(&targets, graph->nodes[i]);
        }
    list_end(&targets, &(size_t){*count});
    list_end(&sources, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    struct list list = {nodes, nodes && count ? *count : 0, 0};

    NODE_OR_FAIL(node);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    clear_data(nodes ? data : NULL, *count);
    for (size_t i = 0; i < node->count; i++)
        list_add(&list, node->dependencies[i]);
    list_end(&list, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    struct list list = {nodes, nodes && count ? *count : 0, 0};

    NODE_OR_FAIL(node);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    clear_data(nodes ? data : NULL, *count);
    for (size_t i = 0; i < node->graph->count; i++)
        if (node_depends(node->graph->nodes[i], node))
            list_add(&list, node->graph->nodes[i]);
    list_end(&list, count);
    return CUDA_SUCCESS;
}

static bool in_graph(CUgraph graph, CUgraphNode node) { return object_check(node, KIND_NODE) && node->graph == graph; }

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
{
    CUresult result = CUDA_SUCCESS;

    (void)data;
    GRAPH_OR_FAIL(graph);
    if (count && (!from || !to))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!in_graph(graph, from[i]) || !in_graph(graph, to[i]) || from[i] == to[i] || node_depends(to[i], from[i]))
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = node_add_dependency(to[i], from[i]);
    return result;
}

static bool remove_dependency(CUgraphNode node, CUgraphNode on)
{
    for (size_t i = 0; i < node->count; i++)
        if (node->dependencies[i] == on) {
            node->dependencies[i] = node->dependencies[--node->count];
            return true;
        }
    return false;
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
{
    (void)data;
    GRAPH_OR_FAIL(graph);
    if (count && (!from || !to))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!in_graph(graph, from[i]) || !in_graph(graph, to[i]) || !remove_dependency(to[i], from[i]))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode node)
{
    CUgraph graph;
    size_t kept = 0;

    NODE_OR_FAIL(node);
    graph = node->graph;
    for (size_t i = 0; i < graph->count; i++) {
        if (graph->nodes[i] == node)
            continue;
        remove_dependency(graph->nodes[i], node);
        graph->nodes[kept++] = graph->nodes[i];
    }
    graph->count = kept;
    object_end(node);
    return CUDA_SUCCESS;
}
