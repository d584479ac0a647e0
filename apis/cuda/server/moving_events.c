/* The state of events: when they were reached. In a process that the session has moved to they are new, and so complete, but have no
 * time: that is kept beside them until they are recorded again. */
#include "moving.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

/* After so long another event is the reference: the driver tells spans in 24 bits. */
static const double REFERENCE_MS = 10000;

/* The last event of this process's own that was reached, and when, in milliseconds of the monotonic clock; of one context at a time. */
static struct {
    uint64_t serial;
    CUevent event;
    double at;
} reference;
static pthread_mutex_t reference_lock = PTHREAD_MUTEX_INITIALIZER;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* With the lock; the context is current. */
static CUresult refresh_reference(CUcontext context) {
    uint64_t serial = cuda_context_serial(context);
    CUstream stream = NULL;
    if (reference.serial == serial && now_ms() - reference.at < REFERENCE_MS)
        return CUDA_SUCCESS;
    if (reference.event && cuda_context_lives(reference.serial))
        cuEventDestroy_v2(reference.event);
    reference.serial = 0;
    reference.event = NULL;
    CUresult status = cuEventCreate(&reference.event, CU_EVENT_DEFAULT);
    if (status == CUDA_SUCCESS)
        status = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (status == CUDA_SUCCESS) {
        status = cuEventRecord(reference.event, stream);
        if (status == CUDA_SUCCESS)
            status = cuEventSynchronize(reference.event);
        cuStreamDestroy_v2(stream);
    }
    if (status == CUDA_SUCCESS) {
        reference.at = now_ms();
        reference.serial = serial;
    }
    return status;
}

/* The time at which the event was reached, in this process. CUDA_ERROR_INVALID_HANDLE: it was not recorded here. The context is current. */
static CUresult native_time(CUcontext context, CUevent event, double *at) {
    float span = 0;
    CUresult status = cuEventElapsedTime_v2(&span, event, event);
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&reference_lock);
    status = refresh_reference(context);
    if (status == CUDA_SUCCESS)
        status = cuEventElapsedTime_v2(&span, reference.event, event);
    *at = reference.at + (double)span;
    pthread_mutex_unlock(&reference_lock);
    return status;
}

void cuda_note_made_event(CUevent event, unsigned int flags) {
    struct cuda_event *object = event ? metadata(struct cuda_event, event) : NULL;
    if (!object)
        return;
    object->context_serial = cuda_context_serial(cuda_thread_context());
    object->has_times = !(flags & CU_EVENT_DISABLE_TIMING);
}

/* The time of an event, of this process or of before. */
static CUresult time_of(CUcontext context, CUevent event, double *at) {
    const struct cuda_event *object = metadata(struct cuda_event, event);
    CUresult status = native_time(context, event, at);
    if (status != CUDA_ERROR_INVALID_HANDLE || !object || !object->was_reached)
        return status;
    *at = object->reached_ms;
    return CUDA_SUCCESS;
}

static int moved(CUevent event) {
    const struct cuda_event *object = metadata(struct cuda_event, event);
    return object && object->was_reached;
}

static CUresult elapsed_time(float *milliseconds, CUevent start, CUevent end) {
    double from = 0, to = 0;
    CUresult status = cuEventElapsedTime_v2(milliseconds, start, end);
    if (status != CUDA_ERROR_INVALID_HANDLE || !milliseconds || !start || !end || (!moved(start) && !moved(end)))
        return status;
    CUcontext context = cuda_thread_context();
    status = time_of(context, start, &from);
    if (status == CUDA_SUCCESS)
        status = time_of(context, end, &to);
    if (status == CUDA_SUCCESS)
        *milliseconds = (float)(to - from);
    return status;
}

void *cuda_elapsed_time_function(void) {
    return (void *)elapsed_time;
}

/* One number: when it was reached. Nothing of events without times, of such that were never recorded, and where the context has ended. */
int64_t cuda_save_event(CUevent event, uint64_t offset, void *to, size_t bytes) {
    const struct cuda_event *object = metadata(struct cuda_event, event);
    CUcontext contexts[CUDA_MOST_CONTEXTS];
    double at = 0;
    if (offset || !object || !object->has_times)
        return 0;
    size_t count = cuda_live_contexts(contexts, CUDA_MOST_CONTEXTS);
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < count && i < CUDA_MOST_CONTEXTS; i++)
        if (cuda_context_serial(contexts[i]) == object->context_serial && cuda_enter_context(contexts[i])) {
            status = time_of(contexts[i], event, &at);
            cuda_leave_context();
        }
    if (status == CUDA_ERROR_INVALID_HANDLE)
        return 0;
    if (status != CUDA_SUCCESS || bytes < sizeof at)
        return -1;
    memcpy(to, &at, sizeof at);
    return sizeof at;
}

int cuda_restore_event(CUevent event, uint64_t offset, const void *from, size_t bytes) {
    struct cuda_event *object = metadata(struct cuda_event, event);
    if (!object || offset || bytes != sizeof object->reached_ms)
        return 1;
    memcpy(&object->reached_ms, from, bytes);
    object->was_reached = 1;
    return 0;
}
