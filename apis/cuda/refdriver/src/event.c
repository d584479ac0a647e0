#include <stdlib.h>
#include <time.h>

#include "stream.h"

static void destroy(void *object)
{
    CUevent event = object;

    if (event->point.stream)
        object_drop(event->point.stream);
    free(event->frontier);
    if (event->shared)
        shared_event_end(event->shared);
}

CUevent event_new(CUcontext context, unsigned flags, struct shared_event *shared)
{
    CUevent event = object_new(KIND_EVENT, sizeof(*event), destroy);

    if (event) {
        event->context = context;
        event->flags = flags;
        event->shared = shared;
    } else if (shared) {
        shared_event_end(shared);
    }
    return event;
}

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void event_stamp(CUevent event)
{
    int64_t time = now();

    pthread_mutex_lock(&driver_lock);
    event->nanoseconds = time;
    pthread_mutex_unlock(&driver_lock);
}

static bool reached(CUevent event)
{
    if (event->shared)
        return shared_event_reached(event->shared, shared_event_latest(event->shared));
    return !event->recorded || event->point.stream->completed >= event->point.number;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    struct shared_event *shared = NULL;
    CUcontext context;
    CUresult result = event && !(flags & ~known) ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    if (flags & CU_EVENT_INTERPROCESS) {
        if (!(flags & CU_EVENT_DISABLE_TIMING))
            return CUDA_ERROR_INVALID_VALUE;
        shared = shared_event_new();
        if (!shared)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *event = event_new(context, flags, shared);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy(CUevent event)
{
    if (!object_check(event, KIND_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->shared)
        shared_event_close(event->shared);
    object_end(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned flags)
{
    CUevent event = object_check(handle, KIND_EVENT);
    struct operation operation = {.kind = OPERATION_RECORD, .event = event};
    CUstream stream;
    CUresult result;

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    result = stream_resolve(stream_handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->context != event->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && !(flags & CU_EVENT_RECORD_EXTERNAL))
        return capture_record(stream, event);
    event->capture_id = 0;
    object_hold(event);
    return stream_submit(stream, &operation);
}

CUresult cuEventRecord(CUevent event, CUstream stream) { return cuEventRecordWithFlags(event, stream, 0); }

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
    CUevent event = object_check(handle, KIND_EVENT);
    struct operation operation = {.kind = OPERATION_WAIT, .event = event};
    CUstream stream;
    CUresult result;

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    result = stream_resolve(stream_handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->capture_id || (stream->capture && !(flags & CU_EVENT_WAIT_EXTERNAL)))
        return capture_wait(stream, event);
    object_hold(event);
    return stream_submit(stream, &operation);
}

CUresult cuEventQuery(CUevent handle)
{
    CUevent event = object_check(handle, KIND_EVENT);

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture_id)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (event->context->error != CUDA_SUCCESS)
        return event->context->error;
    CUresult forbidden = capture_forbids_unsafe();
    if (forbidden != CUDA_SUCCESS)
        return forbidden;
    return reached(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Waits for an event of several processes: nobody tells of what others do, so it looks. */
static CUresult synchronize_shared(CUevent event)
{
    CUcontext context = event->context;
    uint64_t number = shared_event_latest(event->shared);
    CUresult error;

    object_hold(event);
    object_hold(context);
    while (!shared_event_reached(event->shared, number) && context->error == CUDA_SUCCESS) {
        pthread_mutex_unlock(&driver_lock);
        shared_event_pause();
        pthread_mutex_lock(&driver_lock);
    }
    print_flush(context);
    error = context->error;
    object_drop(event);
    object_drop(context);
    return error;
}

CUresult cuEventSynchronize(CUevent handle)
{
    CUevent event = object_check(handle, KIND_EVENT);
    CUcontext context;
    struct point point;
    CUresult error;

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture_id)
        return CUDA_ERROR_CAPTURED_EVENT;
    error = capture_forbids_unsafe();
    if (error != CUDA_SUCCESS)
        return error;
    if (event->shared)
        return synchronize_shared(event);
    context = event->context;
    if (reached(event)) {
        print_flush(context);
        return context->error;
    }
    /* The recording of now, whatever becomes of the event meanwhile. */
    point = event->point;
    object_hold(point.stream);
    object_hold(context);
    while (point.stream->completed < point.number)
        pthread_cond_wait(&driver_changed, &driver_lock);
    print_flush(context);
    error = context->error;
    object_drop(point.stream);
    object_drop(context);
    return error;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    CUevent start = object_check(start_handle, KIND_EVENT), end = object_check(end_handle, KIND_EVENT);

    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!start || !end || !start->recorded || !end->recorded || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!reached(start) || !reached(end))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(end->nanoseconds - start->nanoseconds) / 1e6);
    return CUDA_SUCCESS;
}
