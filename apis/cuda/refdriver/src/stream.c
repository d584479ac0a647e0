#include "stream.h"

#include <stdlib.h>
#include <string.h>

static unsigned long long last_id;

static void destroy(void *object)
{
    CUstream stream = object;

    free(stream->frontier);
}

static CUstream create(CUcontext context, unsigned flags, int priority)
{
    CUstream stream = object_new(KIND_STREAM, sizeof(*stream), destroy);

    if (!stream)
        return NULL;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority > STREAM_PRIORITY_LEAST      ? STREAM_PRIORITY_LEAST
                       : priority < STREAM_PRIORITY_GREATEST ? STREAM_PRIORITY_GREATEST
                                                             : priority;
    stream->id = ++last_id;
    stream->sibling = context->streams;
    context->streams = stream;
    return stream;
}

static CUstream legacy(CUcontext context)
{
    if (!context->legacy)
        context->legacy = create(context, CU_STREAM_DEFAULT, 0);
    return context->legacy;
}

static CUstream per_thread(CUcontext context)
{
    CUstream stream = context->streams;

    while (stream && !(stream->per_thread && pthread_equal(stream->owner, pthread_self())))
        stream = stream->sibling;
    if (stream)
        return stream;
    stream = create(context, CU_STREAM_DEFAULT, 0);
    if (stream) {
        stream->per_thread = true;
        stream->owner = pthread_self();
    }
    return stream;
}

CUresult stream_resolve(CUstream handle, CUstream *stream)
{
    CUcontext context;
    CUresult result = context_need(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (!handle)
        handle = default_stream;
    if (handle == CU_STREAM_LEGACY)
        *stream = legacy(context);
    else if (handle == CU_STREAM_PER_THREAD)
        *stream = per_thread(context);
    else if ((*stream = object_check(handle, KIND_STREAM)))
        return (*stream)->context->error;
    else
        return CUDA_ERROR_INVALID_HANDLE;
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- running --- */

static bool ready(const struct work *work)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->after[i].stream->completed < work->after[i].number)
            return false;
    return true;
}

static void end_work(struct work *work)
{
    for (size_t i = 0; i < work->count; i++)
        object_drop(work->after[i].stream);
    operation_clear(&work->operation);
    free(work);
}

static void unlink_stream(CUstream stream)
{
    CUstream *link = &stream->context->streams;

    while (*link && *link != stream)
        link = &(*link)->sibling;
    if (*link)
        *link = stream->sibling;
    if (stream->context->legacy == stream)
        stream->context->legacy = NULL;
}

/* A stream's thread. It has a reference to the stream, and the stream's work one to the context's object. */
static void *serve(void *argument)
{
    CUstream stream = argument;
    CUcontext context = stream->context;

    pthread_mutex_lock(&driver_lock);
    for (;;) {
        struct work *work = stream->first;
        CUresult result = CUDA_SUCCESS;

        if (!work && stream->ended)
            break;
        if (!work || !ready(work)) {
            pthread_cond_wait(&driver_changed, &driver_lock);
            continue;
        }
        /* After an error the rest is dropped; only callbacks of the older kind are told of it. */
        if (context->error == CUDA_SUCCESS || work->operation.kind == OPERATION_CALLBACK) {
            pthread_mutex_unlock(&driver_lock);
            result = operation_run(&work->operation, context);
            pthread_mutex_lock(&driver_lock);
        }
        if (result != CUDA_SUCCESS && context->error == CUDA_SUCCESS)
            context->error = result;
        shared_event_complete(&work->operation);
        stream->first = work->next;
        if (!stream->first)
            stream->last = NULL;
        stream->completed++;
        end_work(work);
        pthread_cond_broadcast(&driver_changed);
    }
    unlink_stream(stream);
    object_drop(stream);
    object_drop(context);
    pthread_mutex_unlock(&driver_lock);
    return NULL;
}

static bool start(CUstream stream)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int failed;

    if (stream->started)
        return true;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    failed = pthread_create(&thread, &attributes, serve, stream);
    pthread_attr_destroy(&attributes);
    if (failed)
        return false;
    object_hold(stream);
    object_hold(stream->context);
    return stream->started = true;
}

static void add_point(struct work *work, CUstream stream, uint64_t number)
{
    if (stream->completed >= number)
        return;
    object_hold(stream);
    work->after[work->count++] = (struct point){stream, number};
}

/* The default stream waits for all blocking streams of its context, and they for it. */
static void add_implicit_points(struct work *work, CUstream stream)
{
    CUcontext context = stream->context;

    if (stream == context->legacy) {
        for (CUstream other = context->streams; other; other = other->sibling)
            if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING))
                add_point(work, other, other->submitted);
    } else if (context->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING)) {
        add_point(work, context->legacy, context->legacy->submitted);
    }
}

CUresult stream_enqueue(CUstream stream, struct operation *operation)
{
    size_t others = 2;
    struct work *work;

    for (CUstream other = stream->context->streams; other; other = other->sibling)
        others++;
    work = calloc(1, sizeof(*work) + others * sizeof(work->after[0]));
    if (!work || !start(stream) || !shared_event_submit(operation)) {
        free(work);
        operation_clear(operation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    work->operation = *operation;
    operation_note_printing(operation);
    add_implicit_points(work, stream);
    if (operation->kind == OPERATION_WAIT && operation->event->recorded)
        add_point(work, operation->event->point.stream, operation->event->point.number);
    if (stream->last)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    stream->submitted++;
    if (operation->kind == OPERATION_RECORD && !operation->event->shared) {
        CUevent event = operation->event;
        object_hold(stream);
        if (event->point.stream)
            object_drop(event->point.stream);
        event->point = (struct point){stream, stream->submitted};
        event->recorded = true;
    }
    pthread_cond_broadcast(&driver_changed);
    return CUDA_SUCCESS;
}

CUresult stream_submit(CUstream stream, struct operation *operation)
{
    CUresult result = CUDA_SUCCESS;

    if (stream->capture)
        return capture_add(stream, operation);
    if (stream == stream->context->legacy)
        result = capture_implicit(stream->context);
    if (result == CUDA_SUCCESS)
        return stream_enqueue(stream, operation);
    operation_clear(operation);
    return result;
}

void stream_wait(CUstream stream)
{
    uint64_t number = stream->submitted;

    object_hold(stream);
    while (stream->completed < number)
        pthread_cond_wait(&driver_changed, &driver_lock);
    object_drop(stream);
}

CUresult streams_wait(CUcontext context, bool also_non_blocking)
{
    size_t count = 0, i = 0;
    struct point *points;

    for (CUstream stream = context->streams; stream; stream = stream->sibling)
        count++;
    points = calloc(count + 1, sizeof(*points));
    if (!points)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object_hold(context);
    /* Others may create and destroy streams during the wait. */
    for (CUstream stream = context->streams; stream; stream = stream->sibling) {
        object_hold(stream);
        points[i++] = (struct point){stream, also_non_blocking || !(stream->flags & CU_STREAM_NON_BLOCKING) ? stream->submitted : 0};
    }
    for (i = 0; i < count; i++) {
        while (points[i].stream->completed < points[i].number)
            pthread_cond_wait(&driver_changed, &driver_lock);
        object_drop(points[i].stream);
    }
    free(points);
    CUresult error = context->error;
    object_drop(context);
    return error;
}

void streams_end(CUcontext context)
{
    while (context->streams) {
        CUstream stream = context->streams;

        capture_leave(stream);
        unlink_stream(stream);
        stream->ended = true;
        object_end(stream);
    }
    context->legacy = NULL;
    pthread_cond_broadcast(&driver_changed);
}

/* --- the driver's functions --- */

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    CUcontext context;
    CUresult result = stream && !(flags & ~(unsigned)CU_STREAM_NON_BLOCKING) ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    *stream = create(context, flags, priority);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

CUresult cuStreamDestroy(CUstream handle)
{
    CUstream stream = object_check(handle, KIND_STREAM);

    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    capture_leave(stream);
    stream->ended = true;
    /* Work that is under way still runs; its thread then takes the stream out of the context. */
    if (!stream->started)
        unlink_stream(stream);
    object_end(stream);
    pthread_cond_broadcast(&driver_changed);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle)
{
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result == CUDA_SUCCESS)
        result = capture_forbids(stream);
    return result != CUDA_SUCCESS ? result : stream_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);
    CUcontext context;

    if (result != CUDA_SUCCESS)
        context_flush();
    else
        result = capture_forbids(stream);
    if (result != CUDA_SUCCESS)
        return result;
    context = stream->context;
    object_hold(context);
    /* The default stream is only through when the blocking streams before it are. */
    if (stream == context->legacy)
        result = streams_wait(context, false);
    else
        stream_wait(stream);
    print_flush(context);
    if (result == CUDA_SUCCESS)
        result = context->error;
    object_drop(context);
    return result;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    CUstream stream;
    CUresult result = priority ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *priority = stream->priority;
    return result;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags)
{
    CUstream stream;
    CUresult result = flags ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *flags = stream->flags;
    return result;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    CUstream stream;
    CUresult result = id ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *id = stream->id;
    return result;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    CUstream stream;
    CUresult result = device ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *device = stream->context->device;
    return result;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    CUstream stream;
    CUresult result = context ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *context = stream->context;
    return result;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    if (green)
        *green = NULL;
    return cuStreamGetCtx(handle, context);
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    CUstream stream;
    CUresult result = value && (unsigned)attribute < STREAM_ATTRIBUTES ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *value = stream->attributes[attribute];
    return result;
}

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    CUstream stream;
    CUresult result = value && (unsigned)attribute < STREAM_ATTRIBUTES ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        stream->attributes[attribute] = *value;
    return result;
}

CUresult cuStreamCopyAttributes(CUstream destination, CUstream source)
{
    CUstream to, from;
    CUresult result = stream_resolve(destination, &to);

    if (result == CUDA_SUCCESS)
        result = stream_resolve(source, &from);
    if (result == CUDA_SUCCESS)
        memcpy(to->attributes, from->attributes, sizeof(to->attributes));
    return result;
}
