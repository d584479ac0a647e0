/* A graph as text for Graphviz, written where the application runs. */
#include "guest/graphs.h"
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {
    [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",
    [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
    [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",
    [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
    [CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH",
    [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
    [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "EVENT_WAIT",
    [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
    [CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL] = "EXT_SEMAS_SIGNAL",
    [CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT] = "EXT_SEMAS_WAIT",
    [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",
    [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
    [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
    [CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

/* How many clusters there are, and how deep the one is that is written. */
struct printer {
    FILE *file;
    unsigned int clusters, depth;
};
enum { MOST_DEPTH = 16 };

static CUresult print_cluster(struct printer *printer, CUgraph graph);

static CUresult print_node(struct printer *printer, unsigned int cluster, size_t number, CUgraphNode node) {
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS kernel;
    const char *kernel_name = NULL;
    CUgraph child;
    CUresult status = cuGraphNodeGetType(node, &type);
    if (status != CUDA_SUCCESS)
        return status;
    int known = (unsigned int)type < sizeof names / sizeof names[0] && names[type];
    fprintf(printer->file, "\"graph_%u_node_%zu\"[style=\"%s\" shape=\"%s\" label=\"%zu\\n%s", cluster, number,
            type == CU_GRAPH_NODE_TYPE_KERNEL ? "bold" : "solid", type == CU_GRAPH_NODE_TYPE_KERNEL ? "octagon" : "rectangle",
            number, known ? names[type] : "OTHER");
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && cuda_get_kernel_node(node, &kernel) == CUDA_SUCCESS
        && ((kernel.kern && cuKernelGetName(&kernel_name, kernel.kern) == CUDA_SUCCESS)
            || (kernel.func && cuFuncGetName(&kernel_name, kernel.func) == CUDA_SUCCESS)))
        fprintf(printer->file, "\\n%s\\n<<<(%u,%u,%u),(%u,%u,%u),%u>>>", kernel_name, kernel.gridDimX, kernel.gridDimY,
                kernel.gridDimZ, kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ, kernel.sharedMemBytes);
    fprintf(printer->file, "\"];\n");
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
        status = print_cluster(printer, child);
    return status;
}

static size_t place_of(const CUgraphNode *nodes, size_t count, CUgraphNode node) {
    size_t at = 0;
    while (at < count && nodes[at] != node)
        at++;
    return at;
}

static CUresult print_cluster(struct printer *printer, CUgraph graph) {
    size_t count = 0, edges = 0;
    unsigned int cluster = ++printer->clusters;
    if (printer->depth >= MOST_DEPTH)
        return CUDA_SUCCESS;
    CUresult status = cuGraphGetNodes(graph, NULL, &count);
    if (status == CUDA_SUCCESS)
        status = cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &edges);
    CUgraphNode *nodes = calloc(count + 1, sizeof *nodes), *from = calloc(edges + 1, sizeof *from);
    CUgraphNode *to = calloc(edges + 1, sizeof *to);
    CUgraphEdgeData *data = calloc(edges + 1, sizeof *data);
    if (!nodes || !from || !to || !data)
        status = CUDA_ERROR_OUT_OF_MEMORY;
    if (status == CUDA_SUCCESS && count)
        status = cuGraphGetNodes(graph, nodes, &count);
    if (status == CUDA_SUCCESS && edges)
        status = cuGraphGetEdges_v2(graph, from, to, data, &edges);
    fprintf(printer->file, "subgraph cluster_%u {\nlabel=\"graph_%u\" graph[style=\"dashed\"];\n", cluster, cluster);
    printer->depth++;
    for (size_t i = 0; status == CUDA_SUCCESS && i < count; i++)
        status = print_node(printer, cluster, i, nodes[i]);
    printer->depth--;
    for (size_t i = 0; status == CUDA_SUCCESS && i < edges; i++)
        fprintf(printer->file, "\"graph_%u_node_%zu\" -> \"graph_%u_node_%zu\"[headlabel=%u];\n", cluster,
                place_of(nodes, count, from[i]), cluster, place_of(nodes, count, to[i]), data[i].from_port);
    fprintf(printer->file, "}\n");
    free(nodes);
    free(from);
    free(to);
    free(data);
    return status;
}

CUresult cuda_print_graph(CUgraph graph, const char *path, unsigned int flags) {
    size_t count;
    (void)flags;
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGraphGetNodes(graph, NULL, &count);
    if (status != CUDA_SUCCESS)
        return status;
    struct printer printer = {fopen(path, "we"), 0, 0};
    if (!printer.file)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(printer.file, "digraph dot {\n");
    status = print_cluster(&printer, graph);
    fprintf(printer.file, "}\n");
    return fclose(printer.file) ? CUDA_ERROR_OPERATING_SYSTEM : status;
}
