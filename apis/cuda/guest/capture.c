/* Stream capture: whether anybody captures, and what a captured stream depends on. */
#include "guest/context.h"
#include <string.h>

static int captures;

/* How many streams may be capturing; a capture that fails in between is ended by its cuStreamEndCapture. */
void cuda_note_capture(int change) {
    if (__atomic_add_fetch(&captures, change, __ATOMIC_ACQ_REL) < 0)
        __atomic_store_n(&captures, 0, __ATOMIC_RELEASE);
}

int cuda_capturing(void) {
    return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) > 0;
}

/* True if work for a stream may be sent without waiting. While a thread captures, the driver may refuse any of it, and
 * the capturing thread has to learn at which call. */
int cuda_is_stream(CUstream stream) {
    return (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || aviary_is_handle(stream))
           && !cuda_capturing() && cuda_no_sticky_error();
}

CUresult cuda_not_capturing(CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

enum { MOST_DEPENDENCIES = 256 };

/* The driver's arrays are valid until the next call for the stream; these until the thread's next question. */
CUresult cuda_capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                           const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count) {
    static __thread CUgraphNode known_nodes[MOST_DEPENDENCIES];
    static __thread CUgraphEdgeData known_edges[MOST_DEPENDENCIES];
    size_t known = 0;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_capturing() && cuda_is_stream(stream))
        return cuda_not_capturing(status);
    CUresult result = aviaryCaptureInfo(stream, status, id, graph, MOST_DEPENDENCIES, known_nodes, known_edges, &known);
    if (result != CUDA_SUCCESS)
        return result;
    if (known > MOST_DEPENDENCIES)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (nodes)
        *nodes = known_nodes;
    if (edges)
        *edges = known_edges;
    if (count)
        *count = known;
    return CUDA_SUCCESS;
}
