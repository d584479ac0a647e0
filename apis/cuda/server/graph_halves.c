/* Copies of ordinary memory in graphs. The device cannot look into such memory, so a node of the application's becomes
 * up to three: a host function that has the guest copy into page-locked memory, the device's copy, a host function that
 * has the guest copy out of it. The host functions are no nodes for the application (graph_view.c). */
#include "server.h"
#include "graph_halves.h"
#include <pthread.h>
#include <stdlib.h>

/* The guest's function; set before the first half is made, and never changed. */
static aviary_half_function guest_function;
static void *guest_data;
static int any_halves;

struct half {
    struct cuda_halves *of;
    unsigned int kind;
};

/* Of one copy. Its user object keeps it as long as a graph, or anything made of it, has nodes of it. */
struct cuda_halves {
    aviary_halves told;
    /* Of a node that was added to it, not of its clones. */
    CUgraph graph;
    struct half gather, scatter;
};

static CUresult serve_halves(aviary_half_function function, void *data) {
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    if (!__atomic_load_n(&guest_function, __ATOMIC_ACQUIRE)) {
        guest_data = data;
        __atomic_store_n(&guest_function, function, __ATOMIC_RELEASE);
    }
    return CUDA_SUCCESS;
}

void *cuda_serve_halves_function(void) {
    return (void *)serve_halves;
}

static void run(unsigned int kind, unsigned long long number) {
    aviary_half_function function = __atomic_load_n(&guest_function, __ATOMIC_ACQUIRE);
    if (function)
        function(kind, number, guest_data);
}

static void CUDA_CB run_half(void *data) {
    const struct half *half = data;
    run(half->kind, half->of->told.number);
}

/* Of a node that was switched off. */
static void CUDA_CB skip_half(void *data) {
    (void)data;
}

static void CUDA_CB end_halves(void *data) {
    struct cuda_halves *halves = data;
    run(AVIARY_HALF_END, halves->told.number);
    free(halves);
}

int cuda_has_halves(void) {
    return __atomic_load_n(&any_halves, __ATOMIC_ACQUIRE);
}

/* Which half a node is; NULL: none, that is, the application's own node. */
static struct half *half_of(CUgraphNode node) {
    CUgraphNodeType type;
    CUDA_HOST_NODE_PARAMS host;
    if (!node || cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_HOST
        || cuGraphHostNodeGetParams(node, &host) != CUDA_SUCCESS || host.fn != run_half)
        return NULL;
    return host.userData;
}

unsigned int cuda_half_kind(CUgraphNode node) {
    const struct half *half = half_of(node);
    return half ? half->kind : 0;
}

/* The neighbour of a copy's node that is its half of that kind; NULL: it has none. */
CUgraphNode cuda_half_beside(CUgraphNode node, unsigned int kind) {
    CUgraphNodeType type;
    CUgraphNode found = NULL;
    if (!cuda_has_halves() || cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_MEMCPY)
        return NULL;
    struct cuda_nodes list = cuda_list_neighbours(node, kind == AVIARY_HALF_SCATTER);
    for (size_t i = 0; i < list.count && !found; i++)
        if (cuda_half_kind(list.nodes[i]) == kind)
            found = list.nodes[i];
    cuda_free_nodes(&list);
    return found;
}

/* The copy that a half belongs to. */
CUgraphNode cuda_copy_of_half(CUgraphNode half, unsigned int kind) {
    struct cuda_nodes list = cuda_list_neighbours(half, kind == AVIARY_HALF_GATHER);
    CUgraphNode found = NULL;
    for (size_t i = 0; i < list.count && !found; i++) {
        CUgraphNodeType type;
        if (cuGraphNodeGetType(list.nodes[i], &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMCPY)
            found = list.nodes[i];
    }
    cuda_free_nodes(&list);
    return found;
}

/* ---- Executable graphs ------------------------------------------------------------------------ */

/* A half that an executable graph was given, where its graph has another. */
struct exec_half {
    CUgraphExec exec;
    CUgraphNode node;
    struct half *half;
    struct exec_half *next;
};
static struct exec_half *exec_halves;
static pthread_mutex_t exec_halves_lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock. */
static struct exec_half *find_exec_half(CUgraphExec exec, CUgraphNode node) {
    struct exec_half *found = exec_halves;
    while (found && (found->exec != exec || found->node != node))
        found = found->next;
    return found;
}

static CUresult keep_exec_half(CUgraphExec exec, CUgraphNode node, struct half *half) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&exec_halves_lock);
    struct exec_half *found = find_exec_half(exec, node);
    if (found) {
        found->half = half;
    } else if ((found = malloc(sizeof *found))) {
        *found = (struct exec_half){exec, node, half, exec_halves};
        exec_halves = found;
    } else {
        status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&exec_halves_lock);
    return status;
}

/* Which half a node of an executable graph is. */
static struct half *exec_half_of(CUgraphExec exec, CUgraphNode node) {
    pthread_mutex_lock(&exec_halves_lock);
    const struct exec_half *found = find_exec_half(exec, node);
    struct half *half = found ? found->half : NULL;
    pthread_mutex_unlock(&exec_halves_lock);
    return half ? half : half_of(node);
}

/* Also after an update: then the executable graph has those of the graph again. The halves themselves stay, as work may still
 * use them. */
void cuda_forget_exec_halves(CUgraphExec exec) {
    pthread_mutex_lock(&exec_halves_lock);
    for (struct exec_half **link = &exec_halves; *link;) {
        struct exec_half *entry = *link;
        if (entry->exec != exec) {
            link = &entry->next;
            continue;
        }
        *link = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&exec_halves_lock);
}

/* ---- Making ---------------------------------------------------------------------------------- */

static struct cuda_halves *new_halves(aviary_halves told) {
    struct cuda_halves *halves = malloc(sizeof *halves);
    if (halves)
        *halves = (struct cuda_halves){told, NULL, {halves, AVIARY_HALF_GATHER}, {halves, AVIARY_HALF_SCATTER}};
    __atomic_store_n(&any_halves, 1, __ATOMIC_RELEASE);
    return halves;
}

/* From now on the graph keeps them, and ends them. */
static CUresult give_to(CUgraph graph, struct cuda_halves *halves, CUuserObject *object) {
    CUresult status = cuUserObjectCreate(object, halves, end_halves, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (status != CUDA_SUCCESS) {
        free(halves);
        return status;
    }
    halves->graph = graph;
    status = cuGraphRetainUserObject(graph, *object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (status != CUDA_SUCCESS)
        cuUserObjectRelease(*object, 1);
    return status;
}

static CUresult add_half(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                         size_t count, struct half *half) {
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_HOST};
    parameters.host = (CUDA_HOST_NODE_PARAMS_v2){.fn = run_half, .userData = half};
    return cuGraphAddNode_v2(node, graph, dependencies, edges, count, &parameters);
}

/* A copy's node with its halves around it. */
CUresult cuda_add_with_halves(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                              size_t count, CUgraphNodeParams *copy, aviary_halves told) {
    struct cuda_halves *halves = new_halves(told);
    CUuserObject object = NULL;
    CUgraphNode gather = NULL, scatter = NULL;
    *made = NULL;
    if (!halves)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = give_to(graph, halves, &object);
    if (status != CUDA_SUCCESS)
        return status;
    if (told.kinds & AVIARY_HALF_GATHER) {
        status = add_half(&gather, graph, dependencies, edges, count, &halves->gather);
        dependencies = &gather;
        edges = NULL;
        count = 1;
    }
    if (status == CUDA_SUCCESS)
        status = cuGraphAddNode_v2(made, graph, dependencies, edges, count, copy);
    if (status == CUDA_SUCCESS && told.kinds & AVIARY_HALF_SCATTER)
        status = add_half(&scatter, graph, made, NULL, 1, &halves->scatter);
    if (status == CUDA_SUCCESS)
        return status;
    if (*made)
        cuGraphDestroyNode(*made);
    if (gather)
        cuGraphDestroyNode(gather);
    *made = NULL;
    cuGraphReleaseUserObject(graph, object, 1);
    return status;
}

static CUresult set_half(CUgraphExec exec, CUgraphNode node, struct half *half) {
    CUDA_HOST_NODE_PARAMS host = {.fn = run_half, .userData = half};
    if (!exec)
        return cuGraphHostNodeSetParams(node, &host);
    CUresult status = keep_exec_half(exec, node, half);
    return status == CUDA_SUCCESS ? cuGraphExecHostNodeSetParams(exec, node, &host) : status;
}

/* Other memory for a copy's node. A copy cannot get halves that it did not have, as its graph has its nodes; one that it
 * no longer needs does nothing. What is set in an executable graph is the guest's to end. */
CUresult cuda_set_with_halves(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *copy, aviary_halves told) {
    CUgraphNode gather = cuda_half_beside(node, AVIARY_HALF_GATHER), scatter = cuda_half_beside(node, AVIARY_HALF_SCATTER);
    if ((told.kinds & AVIARY_HALF_GATHER && !gather) || (told.kinds & AVIARY_HALF_SCATTER && !scatter))
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult status = exec ? cuGraphExecNodeSetParams(exec, node, copy) : cuGraphNodeSetParams(node, copy);
    if (status != CUDA_SUCCESS || (!gather && !scatter))
        return status;
    const struct half *before = half_of(gather ? gather : scatter);
    CUgraph graph = before ? before->of->graph : NULL;
    struct cuda_halves *halves = new_halves(told);
    CUuserObject object;
    if (!halves)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Of a clone's node nobody knows the graph: then these stay. */
    if (!exec && graph) {
        status = give_to(graph, halves, &object);
        if (status != CUDA_SUCCESS)
            return status;
    }
    /* The kinds that are not asked for have nothing to do: the guest knows no such half of this number. */
    if (gather)
        status = set_half(exec, gather, &halves->gather);
    if (status == CUDA_SUCCESS && scatter)
        status = set_half(exec, scatter, &halves->scatter);
    return status;
}

/* A copy's node of an executable graph is switched off or on, and its halves with it. */
CUresult cuda_enable_halves(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    static const unsigned int kinds[] = {AVIARY_HALF_GATHER, AVIARY_HALF_SCATTER};
    CUresult status = CUDA_SUCCESS;
    for (int i = 0; i < 2 && status == CUDA_SUCCESS; i++) {
        CUgraphNode beside = cuda_half_beside(node, kinds[i]);
        struct half *half = beside ? exec_half_of(exec, beside) : NULL;
        CUDA_HOST_NODE_PARAMS host = {.fn = enabled ? run_half : skip_half, .userData = half};
        if (half)
            status = cuGraphExecHostNodeSetParams(exec, beside, &host);
    }
    return status;
}

/* ---- Captures -------------------------------------------------------------------------------- */

/* A line keeps the form in which the application asked for it. */
static CUresult put_copy(const CUDA_MEMCPY3D *copy, CUstream stream) {
    int line = copy->Height == 1 && copy->Depth == 1 && !copy->srcXInBytes && !copy->srcY && !copy->srcZ && !copy->dstXInBytes
               && !copy->dstY && !copy->dstZ;
    if (line && copy->srcMemoryType == CU_MEMORYTYPE_HOST && copy->dstMemoryType == CU_MEMORYTYPE_DEVICE)
        return cuMemcpyHtoDAsync_v2(copy->dstDevice, copy->srcHost, copy->WidthInBytes, stream);
    if (line && copy->srcMemoryType == CU_MEMORYTYPE_DEVICE && copy->dstMemoryType == CU_MEMORYTYPE_HOST)
        return cuMemcpyDtoHAsync_v2(copy->dstHost, copy->srcDevice, copy->WidthInBytes, stream);
    return cuMemcpy3DAsync_v2(copy, stream);
}

/* The graph that a stream captures. */
CUresult cuda_captured_graph(CUstream stream, CUgraph *graph) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges = NULL;
    cuuint64_t id = 0;
    size_t count = 0;
    *graph = NULL;
    CUresult status = cuStreamGetCaptureInfo_v3(stream, &capturing, &id, graph, &nodes, &edges, &count);
    if (status == CUDA_SUCCESS && (capturing != CU_STREAM_CAPTURE_STATUS_ACTIVE || !*graph))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return status;
}

static CUresult capture_copy(CUDA_MEMCPY3D copy, void *from, size_t from_bytes, void *to, size_t to_bytes, CUstream stream,
                             aviary_halves told) {
    CUgraph graph;
    CUuserObject object;
    CUresult status = cuda_put_sides(&copy, from, from_bytes, to, to_bytes);
    if (status == CUDA_SUCCESS)
        status = cuda_captured_graph(stream, &graph);
    if (status != CUDA_SUCCESS)
        return status;
    struct cuda_halves *halves = new_halves(told);
    if (!halves)
        return CUDA_ERROR_OUT_OF_MEMORY;
    status = give_to(graph, halves, &object);
    if (status == CUDA_SUCCESS && told.kinds & AVIARY_HALF_GATHER)
        status = cuLaunchHostFunc(stream, run_half, &halves->gather);
    if (status == CUDA_SUCCESS)
        status = put_copy(&copy, stream);
    if (status == CUDA_SUCCESS && told.kinds & AVIARY_HALF_SCATTER)
        status = cuLaunchHostFunc(stream, run_half, &halves->scatter);
    return status;
}

void *cuda_capture_copy_function(void) {
    return (void *)capture_copy;
}

/* ---- Questions ------------------------------------------------------------------------------- */

static CUresult get_copy_node(CUgraphNode node, CUDA_MEMCPY3D *copy, unsigned long long *from, unsigned long long *to) {
    if (!copy || !from || !to)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGraphMemcpyNodeGetParams(node, copy);
    if (status != CUDA_SUCCESS)
        return status;
    CUgraphNode gather = cuda_half_beside(node, AVIARY_HALF_GATHER), scatter = cuda_half_beside(node, AVIARY_HALF_SCATTER);
    const struct half *in = gather ? half_of(gather) : NULL, *out = scatter ? half_of(scatter) : NULL;
    /* Memory that both sides share has one address. */
    *from = copy->srcMemoryType != CU_MEMORYTYPE_HOST ? 0
            : in && in->of->told.kinds & AVIARY_HALF_GATHER ? in->of->told.from
                                                            : (uintptr_t)copy->srcHost;
    *to = copy->dstMemoryType != CU_MEMORYTYPE_HOST ? 0
          : out && out->of->told.kinds & AVIARY_HALF_SCATTER ? out->of->told.to
                                                             : (uintptr_t)copy->dstHost;
    copy->srcHost = NULL;
    copy->dstHost = NULL;
    return CUDA_SUCCESS;
}

void *cuda_get_copy_node_function(void) {
    return (void *)get_copy_node;
}
