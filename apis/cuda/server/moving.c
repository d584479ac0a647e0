/* Where a session moves: the contexts that live in this process, the end of all their work before that, and what is in the way. */
#include "moving.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* One thread waits for the contexts, one after the other, as the driver's waits cannot be given up; others ask how far it is. */
enum wait_state { WAIT_IDLE, WAIT_UNDER_WAY, WAIT_DONE };
static struct {
    pthread_mutex_t lock;
    /* The wait is over, or has come to another context. */
    pthread_cond_t progress;
    enum wait_state state;
    CUresult status;
    /* The context that is waited for; NULL: none is at the moment. */
    CUcontext at;
} context_wait = {.lock = PTHREAD_MUTEX_INITIALIZER, .progress = PTHREAD_COND_INITIALIZER};

/* ---- Contexts ---------------------------------------------------------------------------------- */

struct live_context {
    CUcontext context;
    CUdevice device;
    uint64_t serial;
    int printed;
    struct live_context *next;
};

static struct live_context *live_contexts;
static uint64_t last_serial;
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock. */
static struct live_context *find_live(CUcontext context) {
    struct live_context *found = live_contexts;
    while (found && found->context != context)
        found = found->next;
    return found;
}

/* The application was told of it. */
void cuda_note_context(CUcontext context, CUdevice device) {
    pthread_mutex_lock(&live_lock);
    struct live_context *made = context && !find_live(context) ? calloc(1, sizeof *made) : NULL;
    if (made) {
        *made = (struct live_context){.context = context, .device = device, .serial = ++last_serial, .next = live_contexts};
        live_contexts = made;
    }
    pthread_mutex_unlock(&live_lock);
}

/* It is about to end. No wait may be in it then: the driver allows no other call at that time. */
void cuda_forget_context(CUcontext context) {
    struct live_context *ended = NULL;
    pthread_mutex_lock(&live_lock);
    for (struct live_context **link = &live_contexts; *link; link = &(*link)->next)
        if ((*link)->context == context) {
            ended = *link;
            *link = ended->next;
            break;
        }
    pthread_mutex_unlock(&live_lock);
    free(ended);
    pthread_mutex_lock(&context_wait.lock);
    while (context && context_wait.at == context)
        pthread_cond_wait(&context_wait.progress, &context_wait.lock);
    pthread_mutex_unlock(&context_wait.lock);
}

uint64_t cuda_context_serial(CUcontext context) {
    pthread_mutex_lock(&live_lock);
    const struct live_context *found = context ? find_live(context) : NULL;
    uint64_t serial = found ? found->serial : 0;
    pthread_mutex_unlock(&live_lock);
    return serial;
}

int cuda_context_lives(uint64_t serial) {
    pthread_mutex_lock(&live_lock);
    const struct live_context *found = live_contexts;
    while (found && found->serial != serial)
        found = found->next;
    pthread_mutex_unlock(&live_lock);
    return found != NULL;
}

CUcontext cuda_context_on(CUdevice device) {
    CUcontext context = NULL;
    pthread_mutex_lock(&live_lock);
    for (const struct live_context *live = live_contexts; live && !context; live = live->next)
        if (live->device == device)
            context = live->context;
    pthread_mutex_unlock(&live_lock);
    return context;
}

size_t cuda_live_contexts(CUcontext *contexts, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&live_lock);
    for (const struct live_context *live = live_contexts; live; live = live->next, count++)
        if (count < room)
            contexts[count] = live->context;
    pthread_mutex_unlock(&live_lock);
    return count;
}

int cuda_enter_context(CUcontext context) {
    return cuda_context_serial(context) && cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

void cuda_leave_context(void) {
    CUcontext context = NULL;
    cuCtxPopCurrent_v2(&context);
}

/* ---- The context that is current on a thread, for calls that are made again ---------------------- */

CUcontext cuda_thread_context(void) {
    CUcontext context = NULL;
    return cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

/* Calls that make contexts leave them on the thread's stack, under the one that is set here. */
int cuda_set_thread_context(CUcontext context) {
    enum { MOST_NESTED = 4096 };
    for (int i = 0; i < MOST_NESTED && cuda_thread_context(); i++)
        cuda_leave_context();
    return context && cuCtxSetCurrent(context) != CUDA_SUCCESS;
}

/* ---- Keys of calls that are made again ----------------------------------------------------------- */

uint64_t cuda_object_key(CUcontext context) {
    return aviary_object_id(context);
}

static const uint64_t NO_KEY = 0xcbf29ce484222325;

static uint64_t mixed(uint64_t sum, uint64_t value) {
    return (sum ^ value) * 0x100000001b3;
}

/* A later call with another name of the same key takes the place of this one in the log: with 64 bits that does not happen by chance. */
uint64_t cuda_name_key(const char *name) {
    uint64_t sum = NO_KEY;
    for (; name && *name; name++)
        sum = mixed(sum, (unsigned char)*name);
    return sum;
}

uint64_t cuda_access_key(const CUmemAccessDesc *access, size_t count) {
    uint64_t sum = NO_KEY;
    for (size_t i = 0; access && i < count; i++)
        sum = mixed(mixed(sum, access[i].location.type), (uint64_t)access[i].location.id);
    return sum;
}

/* ---- What kernels print ------------------------------------------------------------------------ */

int cuda_has_printed(CUcontext context) {
    pthread_mutex_lock(&live_lock);
    const struct live_context *found = find_live(context);
    int printed = found && found->printed;
    pthread_mutex_unlock(&live_lock);
    return printed;
}

void cuda_set_printed(CUcontext context) {
    pthread_mutex_lock(&live_lock);
    struct live_context *found = find_live(context);
    if (found)
        found->printed = 1;
    pthread_mutex_unlock(&live_lock);
}

/* ---- Primary contexts --------------------------------------------------------------------------- */

enum { MOST_DEVICES = 64 };

/* The guest counts what the application retains; here each is retained once. */
static int held[MOST_DEVICES];
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult retain_primary_context(CUcontext *context, CUdevice device) {
    CUresult status = cuda_retain_charged_context(context, device);
    if (status != CUDA_SUCCESS || device < 0 || device >= MOST_DEVICES)
        return status;
    pthread_mutex_lock(&held_lock);
    if (held[device])
        cuDevicePrimaryCtxRelease_v2(device);
    held[device] = 1;
    pthread_mutex_unlock(&held_lock);
    cuda_note_context(*context, device);
    return status;
}

void *cuda_retain_primary_context_function(void) {
    return (void *)retain_primary_context;
}

/* Its context has ended. */
void cuda_note_primary_end(CUdevice device) {
    pthread_mutex_lock(&held_lock);
    if (device >= 0 && device < MOST_DEVICES)
        held[device] = 0;
    pthread_mutex_unlock(&held_lock);
}

/* ---- Captures ----------------------------------------------------------------------------------- */

/* A stream in which a capture began, by that thread where the stream is a thread's own. */
struct capturing {
    CUstream stream;
    pthread_t thread;
    uint64_t serial;
    struct capturing *next;
};

static struct capturing *capturing;
static int captures_unknown;
static pthread_mutex_t capturing_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t current_serial(void) {
    return cuda_context_serial(cuda_thread_context());
}

static int is_of(const struct capturing *known, CUstream stream, uint64_t serial) {
    return known->stream == stream && known->serial == serial
           && (stream != CU_STREAM_PER_THREAD || pthread_equal(known->thread, pthread_self()));
}

void cuda_note_capture_begun(CUstream stream) {
    struct capturing *made = malloc(sizeof *made);
    pthread_mutex_lock(&capturing_lock);
    if (made) {
        *made = (struct capturing){stream, pthread_self(), current_serial(), capturing};
        capturing = made;
    } else {
        captures_unknown = 1;
    }
    pthread_mutex_unlock(&capturing_lock);
}

/* The capture has ended, or the stream has. */
void cuda_note_capture_ended(CUstream stream) {
    uint64_t serial = current_serial();
    pthread_mutex_lock(&capturing_lock);
    for (struct capturing **link = &capturing; *link;) {
        struct capturing *known = *link;
        if (!is_of(known, stream, stream == CU_STREAM_PER_THREAD ? serial : known->serial)) {
            link = &known->next;
            continue;
        }
        *link = known->next;
        free(known);
    }
    pthread_mutex_unlock(&capturing_lock);
}

static CUresult end_capture(CUstream stream, CUgraph *graph) {
    CUresult status = cuStreamEndCapture(stream, graph);
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    if (status == CUDA_SUCCESS || (cuStreamIsCapturing(stream, &state) == CUDA_SUCCESS && state == CU_STREAM_CAPTURE_STATUS_NONE))
        cuda_note_capture_ended(stream);
    return status;
}

void *cuda_end_capture_function(void) {
    return (void *)end_capture;
}

/* True while any capture is under way: waiting for its context would spoil it. */
static int captures(void) {
    pthread_mutex_lock(&capturing_lock);
    int any = captures_unknown;
    for (const struct capturing *known = capturing; known; known = known->next)
        any |= !known->serial || cuda_context_lives(known->serial);
    pthread_mutex_unlock(&capturing_lock);
    return any;
}

/* ---- What is in the way ------------------------------------------------------------------------- */

/* The outcome of the last wait for all contexts. */
static CUresult last_status;

/* Nobody can say when the work of the contexts has ended. */
static const char *unending(void) {
    if (captures())
        return "a stream is being captured into a graph";
    return cuda_live_contexts(NULL, 0) > CUDA_MOST_CONTEXTS ? "it has more contexts than can be waited for" : NULL;
}

static const char *obstacle(void) {
    const char *why = unending();
    if (why)
        return why;
    if (cuda_has_managed_variables())
        return "the application knows where managed variables of a module are";
    if (cuda_has_unread_logs())
        return "what the compiler said of an image has not been read yet";
    if (cuda_has_captured_memory())
        return "memory that a captured stream has allocated lies where the driver chooses";
    return cuda_code_obstacle();
}

/* NULL: nothing is. */
const char *cuda_stays(void) {
    const char *why = obstacle();
    if (!why && __atomic_load_n(&last_status, __ATOMIC_ACQUIRE) != CUDA_SUCCESS)
        why = "a context has an error that stays";
    return why;
}

/* ---- The end of all work ------------------------------------------------------------------------ */

static void wait_comes_to(CUcontext context) {
    pthread_mutex_lock(&context_wait.lock);
    context_wait.at = context;
    pthread_cond_broadcast(&context_wait.progress);
    pthread_mutex_unlock(&context_wait.lock);
}

static void *wait_for_contexts(void *unused) {
    CUcontext contexts[CUDA_MOST_CONTEXTS];
    CUresult status = CUDA_SUCCESS;
    size_t count = cuda_live_contexts(contexts, CUDA_MOST_CONTEXTS);
    for (size_t i = 0; i < count && i < CUDA_MOST_CONTEXTS && status == CUDA_SUCCESS; i++) {
        /* Before it is looked at whether the context lives. */
        wait_comes_to(contexts[i]);
        if (cuda_enter_context(contexts[i])) {
            status = cuCtxSynchronize();
            cuda_leave_context();
        }
    }
    pthread_mutex_lock(&context_wait.lock);
    context_wait.state = WAIT_DONE;
    context_wait.status = status;
    context_wait.at = NULL;
    pthread_cond_broadcast(&context_wait.progress);
    pthread_mutex_unlock(&context_wait.lock);
    return unused;
}

/* With the lock. False: there is no thread for it. */
static int begin_to_wait(void) {
    pthread_t thread;
    context_wait.state = WAIT_UNDER_WAY;
    if (pthread_create(&thread, NULL, wait_for_contexts, NULL) != 0) {
        context_wait.state = WAIT_IDLE;
        return 0;
    }
    pthread_detach(thread);
    return 1;
}

/* 0: all contexts have done what they were given. 1: not yet. -1: `cuda_stays` says why they cannot. */
int cuda_quiesce(void) {
    enum { PATIENCE_NS = 5000000, SECOND_NS = 1000000000 };
    struct timespec until;
    int answer = 1;
    __atomic_store_n(&last_status, CUDA_SUCCESS, __ATOMIC_RELEASE);
    if (unending())
        return -1;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_NS;
    until.tv_sec += until.tv_nsec / SECOND_NS;
    until.tv_nsec %= SECOND_NS;
    pthread_mutex_lock(&context_wait.lock);
    /* One that an earlier attempt has begun says nothing of what was given since. */
    int is_own = context_wait.state != WAIT_UNDER_WAY;
    int waits = !is_own || begin_to_wait();
    while (waits && context_wait.state == WAIT_UNDER_WAY
           && pthread_cond_timedwait(&context_wait.progress, &context_wait.lock, &until) == 0)
        ;
    if (waits && context_wait.state == WAIT_DONE) {
        context_wait.state = WAIT_IDLE;
        __atomic_store_n(&last_status, context_wait.status, __ATOMIC_RELEASE);
        answer = context_wait.status != CUDA_SUCCESS ? -1 : is_own ? 0 : 1;
    }
    pthread_mutex_unlock(&context_wait.lock);
    return answer;
}
