/* Capturing: calls on a stream become nodes of a graph. A stream joins by waiting for an event of the capture. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "stream.h"

struct capture {
    unsigned long long id;
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    bool invalid, to_graph; /* the graph is the application's */
    unsigned streams;
    pthread_t owner;
    struct capture *next;
};

static struct capture *captures; /* all that are under way */
static unsigned long long last_id;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool set_frontier(CUgraphNode **frontier, size_t *count, const CUgraphNode *nodes, size_t size)
{
    CUgraphNode *copy = malloc((size + 1) * sizeof(*copy));

    if (!copy)
        return false;
    if (size)
        memcpy(copy, nodes, size * sizeof(*copy));
    free(*frontier);
    *frontier = copy;
    *count = size;
    return true;
}

static void detach(CUstream stream)
{
    stream->capture->streams--;
    stream->capture = NULL;
    free(stream->frontier);
    stream->frontier = NULL;
    stream->frontier_count = 0;
}

/* Ends a capture: no stream takes part any more. The graph is the caller's. */
static void end(struct capture *capture)
{
    CUcontext context = capture->origin->context;

    for (CUstream stream = context->streams; stream; stream = stream->sibling)
        if (stream->capture == capture)
            detach(stream);
    struct capture **link = &captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
}

void capture_leave(CUstream stream)
{
    struct capture *capture = stream->capture;

    if (!capture)
        return;
    capture->invalid = true;
    if (capture->origin != stream) {
        detach(stream);
        return;
    }
    if (!capture->to_graph)
        graph_end(capture->graph);
    end(capture);
}

CUresult capture_add(CUstream stream, struct operation *operation)
{
    CUgraphNode node;
    CUresult result = stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;

    if (result != CUDA_SUCCESS) {
        operation_clear(operation);
        return result;
    }
    result = graph_add(&node, stream->capture->graph, stream->frontier, stream->frontier_count, operation);
    if (result == CUDA_SUCCESS && !set_frontier(&stream->frontier, &stream->frontier_count, &node, 1))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

CUresult capture_forbids(CUstream stream)
{
    if (!stream->capture)
        return stream == stream->context->legacy ? capture_implicit(stream->context) : CUDA_SUCCESS;
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* A capture that the default stream would wait for. */
static struct capture *implicit(CUcontext context)
{
    for (CUstream stream = context->streams; stream; stream = stream->sibling)
        if (stream->capture && !(stream->flags & CU_STREAM_NON_BLOCKING))
            return stream->capture;
    return NULL;
}

CUresult capture_implicit(CUcontext context)
{
    struct capture *capture = implicit(context);

    if (!capture)
        return CUDA_SUCCESS;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult capture_forbids_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;

    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct capture *capture = captures; capture; capture = capture->next) {
        bool own = pthread_equal(capture->owner, pthread_self()) && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool others = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || others) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult capture_forbids_all(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;

    for (CUstream stream = context->streams; stream; stream = stream->sibling)
        if (stream->capture) {
            stream->capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

CUresult capture_record(CUstream stream, CUevent event)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!set_frontier(&event->frontier, &event->frontier_count, stream->frontier, stream->frontier_count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->capture_id = stream->capture->id;
    return CUDA_SUCCESS;
}

static struct capture *find(CUcontext context, unsigned long long id)
{
    for (CUstream stream = context->streams; stream; stream = stream->sibling)
        if (stream->capture && stream->capture->id == id)
            return stream->capture;
    return NULL;
}

static bool contains(const CUgraphNode *nodes, size_t count, CUgraphNode node)
{
    for (size_t i = 0; i < count; i++)
        if (nodes[i] == node)
            return true;
    return false;
}

CUresult capture_wait(CUstream stream, CUevent event)
{
    struct capture *capture = event->capture_id ? find(event->context, event->capture_id) : NULL;
    size_t count = stream->frontier_count;
    CUgraphNode *both;

    if (!capture || (stream->capture && stream->capture != capture)) {
        if (stream->capture)
            stream->capture->invalid = true;
        return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_CAPTURED_EVENT;
    }
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    both = malloc((count + event->frontier_count + 1) * sizeof(*both));
    if (!both)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count)
        memcpy(both, stream->frontier, count * sizeof(*both));
    for (size_t i = 0; i < event->frontier_count; i++)
        if (!contains(both, count, event->frontier[i]))
            both[count++] = event->frontier[i];
    free(stream->frontier);
    stream->frontier = both;
    stream->frontier_count = count;
    if (!stream->capture) {
        stream->capture = capture;
        capture->streams++;
    }
    return CUDA_SUCCESS;
}

/* --- the driver's functions --- */

static CUresult begin(CUstream handle, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUstreamCaptureMode mode)
{
    struct capture *capture;
    CUstream stream;
    CUresult result = (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED ? CUDA_ERROR_INVALID_VALUE : stream_resolve(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    capture = calloc(1, sizeof(*capture));
    if (!capture || !set_frontier(&stream->frontier, &stream->frontier_count, dependencies, count)) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->to_graph = graph != NULL;
    capture->graph = graph ? graph : graph_create();
    if (!capture->graph) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->id = ++last_id;
    capture->origin = stream;
    capture->mode = mode;
    capture->streams = 1;
    capture->owner = pthread_self();
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) { return begin(stream, NULL, NULL, 0, mode); }

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)
{
    (void)data;
    if (!object_check(graph, KIND_GRAPH) || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!object_check(dependencies[i], KIND_NODE) || dependencies[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    return begin(stream, graph, dependencies, count, mode);
}

/* A node that nothing follows must be one that the origin stream would wait for. */
static bool joined(const struct capture *capture)
{
    CUgraph graph = capture->graph;

    for (size_t i = 0; i < graph->count; i++) {
        bool last = !contains(capture->origin->frontier, capture->origin->frontier_count, graph->nodes[i]);
        for (size_t j = 0; j < graph->count && last; j++)
            last = !node_depends(graph->nodes[j], graph->nodes[i]);
        if (last)
            return false;
    }
    return true;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    struct capture *capture;
    CUstream stream;
    CUresult result = graph ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    *graph = NULL;
    capture = stream->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!capture->to_graph && !joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *graph = capture->graph;
    else if (!capture->to_graph)
        graph_end(capture->graph);
    end(capture);
    return result;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    if (!stream->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream stream;
    CUresult result = status ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    /* The question does the capture no harm. */
    if (result == CUDA_SUCCESS && stream == stream->context->legacy && implicit(stream->context))
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (result == CUDA_SUCCESS)
        *status = status_of(stream);
    return result;
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                const CUgraphNode **dependencies, const CUgraphEdgeData **data, size_t *count)
{
    CUstream stream;
    CUresult result = status ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    /* The question does the capture no harm. */
    if (result == CUDA_SUCCESS && stream == stream->context->legacy && implicit(stream->context))
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (result != CUDA_SUCCESS)
        return result;
    *status = status_of(stream);
    if (data)
        *data = NULL;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id)
        *id = stream->capture->id;
    if (graph)
        *graph = stream->capture->graph;
    if (dependencies)
        *dependencies = stream->frontier;
    if (count)
        *count = stream->frontier_count;
    return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies, const CUgraphEdgeData *data,
                                           size_t count, unsigned flags)
{
    CUgraphNode *all;
    CUstream stream;
    CUresult result = (count && !dependencies) || flags > 1 ? CUDA_ERROR_INVALID_VALUE : stream_resolve(handle, &stream);
    size_t kept;

    (void)data;
    if (result != CUDA_SUCCESS)
        return result;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    for (size_t i = 0; i < count; i++)
        if (!object_check(dependencies[i], KIND_NODE) || dependencies[i]->graph != stream->capture->graph)
            return CUDA_ERROR_INVALID_VALUE;
    kept = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? 0 : stream->frontier_count;
    all = malloc((kept + count + 1) * sizeof(*all));
    if (!all)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (kept)
        memcpy(all, stream->frontier, kept * sizeof(*all));
    for (size_t i = 0; i < count; i++)
        if (!contains(all, kept, dependencies[i]))
            all[kept++] = dependencies[i];
    free(stream->frontier);
    stream->frontier = all;
    stream->frontier_count = kept;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode old = thread_mode;

    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
