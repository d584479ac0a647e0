/* Queries for the node's device scheduler: the device to which a call gives work, and the completion of the work that this
 * process gave it. For the second each stream that has had work gets an event behind it once somebody asks, and the event is
 * asked until it is reached: so any thread can wait, for any stream, and a stream may end meanwhile.
 *
 * Nothing here may break into a capture of the application's. The driver is asked in its relaxed mode, so that captures of
 * other threads do not matter. No event is put into a stream that captures, or into the default one while another captures
 * that waits for it: work of before is fenced before the capture begins. For that, and so that no stream or context ends
 * under an event that is just put behind it, calls that do such things take the lock. On a node that schedules nothing
 * there are no entries, and nothing is done but to see that. */
#include "capture_mode.h"
#include "server.h"
#include "graph_halves.h"
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

/* Entries are used again, never freed: `asked` may point to one that has become another stream's. */
struct occupant {
    /* NULL: the stream has ended, and the entry is free once it is not busy. */
    CUstream stream;
    CUcontext context;
    /* Whose, of the default stream of a thread: only that thread can put an event into it. */
    pthread_t thread;
    uint64_t ordinal;
    /* Pieces of work are numbered as they are given, in all streams together: the last that it was given, the last when
     * `fence` was put behind it, and up to which it was seen to be through. */
    uint64_t given, fenced, done;
    CUevent fence;
    struct occupant *next;
};
static uint64_t submissions;
static struct occupant *occupants;
static pthread_mutex_t occupants_lock = PTHREAD_MUTEX_INITIALIZER;
/* Somebody has captured: from then on a stream may begin to by waiting for an event. */
static int has_captured;
/* The stream of the call that this thread is about to make. */
static __thread struct occupant *asked;

static int is_default(CUstream stream) {
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* True if a call of the driver's makes a difference here at all. */
static int anybody_occupies(void) {
    return __atomic_load_n(&occupants, __ATOMIC_ACQUIRE) != NULL;
}

/* ---- With the lock ---------------------------------------------------------------------------- */

static int is_busy(const struct occupant *occupant) {
    return occupant->given > occupant->done;
}

static struct occupant *find_occupant(CUstream stream, CUcontext context) {
    struct occupant *found = occupants;
    while (found && !(found->stream == stream && (!is_default(stream) || found->context == context)
                      && (stream != CU_STREAM_PER_THREAD || pthread_equal(found->thread, pthread_self()))))
        found = found->next;
    return found;
}

static struct occupant *free_occupant(CUcontext context) {
    struct occupant *found = occupants;
    while (found && (found->stream || is_busy(found)))
        found = found->next;
    if (!found) {
        found = calloc(1, sizeof *found);
        if (!found)
            return NULL;
        found->next = occupants;
        __atomic_store_n(&occupants, found, __ATOMIC_RELEASE);
    }
    /* Its context lives: entries of contexts that end are emptied before. */
    if (found->fence && found->context != context) {
        cuEventDestroy_v2(found->fence);
        found->fence = NULL;
    }
    found->given = found->fenced = found->done = 0;
    return found;
}

static struct occupant *occupant_of(CUstream stream) {
    CUcontext context = NULL;
    if (!stream)
        stream = CU_STREAM_LEGACY;
    if (is_default(stream) && (cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context))
        return NULL;
    struct occupant *found = find_occupant(stream, context);
    if (found || (!is_default(stream) && cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
        || cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return found;
    uint64_t ordinal = cuda_ordinal_here();
    cuCtxPopCurrent_v2(&context);
    found = ordinal ? free_occupant(context) : NULL;
    if (found) {
        found->stream = stream;
        found->context = context;
        found->thread = pthread_self();
        found->ordinal = ordinal;
        /* CUDA devices do since Pascal. */
        aviary_device_preempts(ordinal);
    }
    return found;
}

/* True if an event can be put into the stream, and no capture is disturbed by that. Asking does not either. */
static int takes_marks(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Puts an event behind all that the stream has. Where that fails nothing is at work: the context has an error that stays, which
 * the application learns from its own calls, or the stream captures, and has got nothing since the capture began. */
static void record_fence(struct occupant *occupant) {
    CUcontext context = NULL;
    int fenced = 0;
    if (occupant->given <= occupant->fenced)
        return;
    if (cuCtxPushCurrent_v2(occupant->context) == CUDA_SUCCESS) {
        fenced = takes_marks(occupant->stream)
                 && (occupant->fence || cuEventCreate(&occupant->fence, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
                 && cuEventRecord(occupant->fence, occupant->stream) == CUDA_SUCCESS;
        cuCtxPopCurrent_v2(&context);
    }
    occupant->fenced = submissions;
    if (!fenced)
        occupant->done = submissions;
}

/* True if the stream is asked in vain whether it has anything to do: then it needs no event, as after a synchronization that the
 * program has made itself. The default stream of another thread cannot be asked. */
static int has_completed_all(struct occupant *occupant) {
    CUcontext context = NULL;
    int own = occupant->stream != CU_STREAM_PER_THREAD || pthread_equal(occupant->thread, pthread_self());
    if (!occupant->stream || !own || cuCtxPushCurrent_v2(occupant->context) != CUDA_SUCCESS)
        return 0;
    int completed = takes_marks(occupant->stream) && cuStreamQuery(occupant->stream) == CUDA_SUCCESS;
    cuCtxPopCurrent_v2(&context);
    return completed;
}

/* True if it still has work up to that submission. What it gets meanwhile is fenced when the fence of before is reached. */
static int is_at_work(struct occupant *occupant, uint64_t submission) {
    if (occupant->fenced > occupant->done && cuEventQuery(occupant->fence) != CUDA_ERROR_NOT_READY)
        occupant->done = occupant->fenced;
    if (occupant->fenced <= occupant->done && is_busy(occupant)) {
        if (has_completed_all(occupant))
            occupant->done = submissions;
        else
            record_fence(occupant);
    }
    return is_busy(occupant) && occupant->done < submission;
}

/* ---- What calls say --------------------------------------------------------------------------- */

/* The device that work in this stream occupies; 0: none does, as the work goes into a graph, or the call will fail. */
uint64_t cuda_device_of_work(CUstream stream) {
    asked = NULL;
    if (!takes_marks(stream))
        return 0;
    pthread_mutex_lock(&occupants_lock);
    asked = occupant_of(stream);
    uint64_t ordinal = asked ? asked->ordinal : 0;
    pthread_mutex_unlock(&occupants_lock);
    return ordinal;
}

/* Copies from and to the host's memory are done beside the device's other work. */
uint64_t cuda_device_of_copy(CUstream stream, size_t from_bytes, size_t to_bytes) {
    asked = NULL;
    return from_bytes || to_bytes ? 0 : cuda_device_of_work(stream);
}

static __attribute__((noinline)) void note_work(void) {
    struct occupant *occupant = asked;
    if (!occupant)
        return;
    asked = NULL;
    pthread_mutex_lock(&occupants_lock);
    if (occupant->stream)
        occupant->given = ++submissions;
    if (occupant->stream == CU_STREAM_PER_THREAD && pthread_equal(occupant->thread, pthread_self())) {
        CUstreamCaptureMode mode = cuda_begin_relaxed();
        record_fence(occupant);
        cuda_end_relaxed(mode);
    }
    pthread_mutex_unlock(&occupants_lock);
}

/* The call was made, and the stream has its work. Little is done where nobody schedules. */
void cuda_note_work(void) {
    if (anybody_occupies())
        note_work();
}

/* The same as for limits and permissions. */
const char *cuda_device_name(uint64_t ordinal) {
    return cuda_ordinal_name(ordinal, 0);
}

/* ---- Waiting ---------------------------------------------------------------------------------- */

/* Between two looks; what is soon over is looked at all the time. */
static void pause_after(unsigned int looks) {
    enum { LOOKS = 100, PAUSE_NS = 20000 };
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    static __thread int is_punctual;
    if (looks < LOOKS) {
        sched_yield();
        return;
    }
    /* The kernel makes pauses of this length four times as long otherwise. */
    if (!is_punctual)
        is_punctual = prctl(PR_SET_TIMERSLACK, 1000) == 0;
    nanosleep(&pause, NULL);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* The last wait for each device, and up to which submission it goes. */
struct device_wait {
    uint64_t ordinal, number, submission;
    struct device_wait *next;
};
static struct device_wait *device_waits;

/* With the lock. The last submission that this wait is for: the last that was given when it began. Without memory all of them. */
static uint64_t last_awaited(uint64_t ordinal, uint64_t number) {
    struct device_wait *found = device_waits;
    while (found && found->ordinal != ordinal)
        found = found->next;
    if (!found && (found = calloc(1, sizeof *found))) {
        found->ordinal = ordinal;
        found->next = device_waits;
        device_waits = found;
    }
    if (found && found->number != number) {
        found->number = number;
        found->submission = submissions;
    }
    return found ? found->submission : UINT64_MAX;
}

/* Waits until the device has done what this process had given it when this wait began. Not for long: what it is at may wait for a
 * later call of the thread that asks, one for another device say. Then it has not (negative), and is asked again. */
int cuda_drain(const struct aviary_drain *request) {
    int64_t until = now_ns() + (int64_t)request->patience_ns;
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    int at_work = 1;
    for (unsigned int looks = 0; at_work && (!looks || now_ns() < until); looks++) {
        if (looks)
            pause_after(looks);
        at_work = 0;
        pthread_mutex_lock(&occupants_lock);
        uint64_t submission = last_awaited(request->device, request->wait);
        for (struct occupant *occupant = occupants; occupant; occupant = occupant->next)
            if (occupant->ordinal == request->device)
                at_work |= is_at_work(occupant, submission);
        pthread_mutex_unlock(&occupants_lock);
    }
    cuda_end_relaxed(mode);
    return at_work ? -1 : 0;
}

/* ---- Captures --------------------------------------------------------------------------------- */

/* Fences the work that streams have so far: they, or the default stream, cannot be while somebody captures. */
static void begin_to_capture(void) {
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    pthread_mutex_lock(&occupants_lock);
    __atomic_store_n(&has_captured, 1, __ATOMIC_RELEASE);
    for (struct occupant *occupant = occupants; occupant; occupant = occupant->next)
        record_fence(occupant);
    cuda_end_relaxed(mode);
}

static CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode) {
    begin_to_capture();
    CUresult status = cuStreamBeginCapture_v2(stream, mode);
    if (status == CUDA_SUCCESS)
        cuda_note_capture_begun(stream);
    pthread_mutex_unlock(&occupants_lock);
    return status;
}

void *cuda_begin_capture_function(void) {
    return (void *)begin_capture;
}

static CUresult begin_capture_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                       const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    CUresult status;
    CUgraphNode *sources = cuda_edge_sources(dependencies, count, &status);
    if (status != CUDA_SUCCESS)
        return status;
    begin_to_capture();
    status = cuStreamBeginCaptureToGraph(stream, graph, sources ? sources : dependencies, edges, count, mode);
    if (status == CUDA_SUCCESS)
        cuda_note_capture_begun(stream);
    pthread_mutex_unlock(&occupants_lock);
    free(sources);
    return status;
}

void *cuda_begin_capture_to_graph_function(void) {
    return (void *)begin_capture_to_graph;
}

static __attribute__((noinline)) CUresult wait_among_captures(CUstream stream, CUevent event, unsigned int flags) {
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    pthread_mutex_lock(&occupants_lock);
    struct occupant *occupant = stream && !is_default(stream) ? find_occupant(stream, NULL) : NULL;
    if (occupant)
        record_fence(occupant);
    cuda_end_relaxed(mode);
    CUresult status = cuStreamWaitEvent(stream, event, flags);
    pthread_mutex_unlock(&occupants_lock);
    return status;
}

/* A stream that waits for an event of a capture takes part in it from then on. */
static CUresult wait_event(CUstream stream, CUevent event, unsigned int flags) {
    if (!anybody_occupies() || !__atomic_load_n(&has_captured, __ATOMIC_ACQUIRE))
        return cuStreamWaitEvent(stream, event, flags);
    return wait_among_captures(stream, event, flags);
}

void *cuda_wait_event_function(void) {
    return (void *)wait_event;
}

/* ---- Ends of streams and contexts ------------------------------------------------------------- */

/* A stream's work goes on without it. */
static CUresult destroy_stream(CUstream stream) {
    cuda_note_capture_ended(stream);
    if (!anybody_occupies() || !stream || is_default(stream))
        return cuStreamDestroy_v2(stream);
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    pthread_mutex_lock(&occupants_lock);
    struct occupant *occupant = find_occupant(stream, NULL);
    if (occupant) {
        record_fence(occupant);
        occupant->stream = NULL;
    }
    cuda_end_relaxed(mode);
    CUresult status = cuStreamDestroy_v2(stream);
    pthread_mutex_unlock(&occupants_lock);
    return status;
}

void *cuda_destroy_stream_function(void) {
    return (void *)destroy_stream;
}

/* A context ends when its work is done. Until then others see that it is not; then its entries must not outlive it. */
static void leave_context(CUcontext context) {
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    int at_work = 1;
    for (unsigned int looks = 0; at_work; looks++) {
        if (looks)
            pause_after(looks);
        at_work = 0;
        pthread_mutex_lock(&occupants_lock);
        for (struct occupant *occupant = occupants; occupant; occupant = occupant->next)
            if (occupant->context == context)
                at_work |= is_at_work(occupant, UINT64_MAX);
        for (struct occupant *occupant = occupants; occupant && !at_work; occupant = occupant->next) {
            if (occupant->context != context)
                continue;
            if (occupant->fence)
                cuEventDestroy_v2(occupant->fence);
            *occupant = (struct occupant){.next = occupant->next};
        }
        pthread_mutex_unlock(&occupants_lock);
    }
    cuda_end_relaxed(mode);
}

static CUresult destroy_context(CUcontext context) {
    if (anybody_occupies() && context)
        leave_context(context);
    cuda_forget_context(context);
    return cuCtxDestroy_v2(context);
}

void *cuda_destroy_context_function(void) {
    return (void *)destroy_context;
}

static void leave_primary_context(CUdevice device) {
    unsigned int flags = 0;
    int active = 0;
    CUcontext context = NULL;
    if (!anybody_occupies() || cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active
        || cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return;
    leave_context(context);
    cuDevicePrimaryCtxRelease_v2(device);
}

/* The application's handle of it stays, and may be given again. */
static void forget_primary_context(CUdevice device) {
    unsigned int flags = 0;
    int active = 0;
    CUcontext context = NULL;
    if (cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active
        || cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return;
    cuda_forget_context(context);
    cuDevicePrimaryCtxRelease_v2(device);
}

static CUresult release_primary_context(CUdevice device) {
    leave_primary_context(device);
    forget_primary_context(device);
    cuda_note_primary_end(device);
    /* Memory is placed without a look at the thread's context, which may be this one. */
    cuda_note_reset();
    return cuda_end_primary_context(device, cuDevicePrimaryCtxRelease_v2);
}

void *cuda_release_primary_context_function(void) {
    return (void *)release_primary_context;
}

static CUresult reset_primary_context(CUdevice device) {
    leave_primary_context(device);
    cuda_note_reset();
    forget_primary_context(device);
    return cuda_end_primary_context(device, cuDevicePrimaryCtxReset_v2);
}

void *cuda_reset_primary_context_function(void) {
    return (void *)reset_primary_context;
}
