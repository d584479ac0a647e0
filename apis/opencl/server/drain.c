/* Queries for the node's device scheduler: the device of a queue, and the completion of the work that this process gave it.
 * For the second each queue that has had work gets a marker behind it once somebody asks, or, while the application has user events that
 * it has not set (references.c says why), a thread that finishes it; these fences are waited for. */
#include "server.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* Queues that got work since the last marker was put behind it. */
struct busy_queue {
    struct opencl_held_queue held;
    cl_device_id device;
    /* Which of all calls began last to give it work. */
    uint64_t begun;
};
struct fence {
    struct opencl_held_queue held;
    cl_device_id device;
    /* The marker; NULL: a thread finishes the queue, and has done so. */
    cl_event event;
    int is_finished;
    struct fence *next;
};
/* The last wait for a device, and since when; its fences are in the list until they are reached. */
struct device_wait {
    cl_device_id device;
    uint64_t number;
    struct timespec since;
    struct device_wait *next;
};
static struct {
    pthread_mutex_t lock;
    struct busy_queue *queues;
    size_t count, room;
    uint64_t begun;
    struct fence *fences;
    struct device_wait *waits;
    /* Threads that finish a queue, each for a fence. */
    int finishers;
} busy = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Marks that were reached, ever. Callbacks of the vendor's write here, so no function of the vendor's is called under this lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    /* `more` waits by the monotonic clock: set before the first wait. */
    int is_ready;
    uint64_t count;
} reached = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

/* How long a wait may take where the application holds commands back, with a call that is still to come perhaps. */
#define PATIENCE_NS 20000000
/* Queues that are finished at a time. */
#define MOST_FINISHERS 16
/* How long the release of a context waits for the ends of what this process has put into its queues. */
#define RELEASE_NS 20000000

/* The device that the queue's commands occupy. */
uint64_t opencl_device(cl_command_queue queue) {
    cl_device_id device = NULL;
    if (clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) != CL_SUCCESS)
        return 0;
    return (uint64_t)(uintptr_t)device;
}

/* Where the queue is in the list, or at whose end it would be. With the lock. */
static size_t place_of(cl_command_queue queue) {
    size_t at = 0;
    while (at < busy.count && busy.queues[at].held.queue != queue)
        at++;
    return at;
}

/* The queue is about to get work: it is waited for when its device is. */
void opencl_begin(cl_command_queue queue) {
    cl_device_id device = (cl_device_id)(uintptr_t)opencl_device(queue);
    pthread_mutex_lock(&busy.lock);
    size_t at = place_of(queue);
    if (at == busy.count && busy.count == busy.room) {
        size_t room = busy.room ? 2 * busy.room : 8;
        struct busy_queue *larger = realloc(busy.queues, room * sizeof *larger);
        if (larger) {
            busy.queues = larger;
            busy.room = room;
        }
    }
    /* Without memory the queue is not waited for: its work counts as what comes after it. */
    struct opencl_held_queue held;
    if (at == busy.count && busy.count < busy.room && opencl_hold_queue(queue, &held))
        busy.queues[busy.count++] = (struct busy_queue){held, device, 0};
    if (at < busy.count)
        busy.queues[at].begun = ++busy.begun;
    pthread_mutex_unlock(&busy.lock);
}

/* Waits for all that the queue has. It needs no marker then, which would wake the device up for nothing: unless somebody has begun
 * meanwhile to give it work, or had begun and not come to an end. */
static cl_int finish(cl_command_queue queue) {
    pthread_mutex_lock(&busy.lock);
    size_t at = place_of(queue);
    struct busy_queue before = at < busy.count ? busy.queues[at] : (struct busy_queue){0};
    pthread_mutex_unlock(&busy.lock);
    int is_all = before.held.queue && !aviary_device_gets_work((uint64_t)(uintptr_t)before.device);
    if (before.held.queue)
        opencl_watch_queue(queue);
    cl_int status = clFinish(queue);
    opencl_settle();
    if (!is_all || status != CL_SUCCESS)
        return status;
    pthread_mutex_lock(&busy.lock);
    at = place_of(queue);
    int is_done = at < busy.count && busy.queues[at].begun == before.begun;
    if (is_done)
        busy.queues[at] = busy.queues[--busy.count];
    pthread_mutex_unlock(&busy.lock);
    if (is_done)
        opencl_let_go_queue(before.held);
    return status;
}

void *opencl_finish_function(void) {
    return (void *)finish;
}

static void count_one_reached(void) {
    pthread_mutex_lock(&reached.lock);
    reached.count++;
    pthread_cond_broadcast(&reached.more);
    pthread_mutex_unlock(&reached.lock);
}

static void CL_CALLBACK note_reached(cl_event event, cl_int status, void *unused) {
    (void)event;
    (void)status;
    (void)unused;
    count_one_reached();
}

static uint64_t count_reached(void) {
    pthread_mutex_lock(&reached.lock);
    uint64_t count = reached.count;
    pthread_mutex_unlock(&reached.lock);
    return count;
}

/* With the lock of `reached`, so that nobody waits for `more` or wakes its waiters meanwhile. */
static void get_ready_to_wait(void) {
    pthread_condattr_t monotonic;
    if (reached.is_ready || pthread_condattr_init(&monotonic) != 0)
        return;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    reached.is_ready = pthread_cond_init(&reached.more, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
}

/* Until a fence is reached that was not when they were counted, or that time has come. */
static void await_reached(uint64_t counted, struct timespec until) {
    pthread_mutex_lock(&reached.lock);
    get_ready_to_wait();
    while (reached.count == counted && pthread_cond_timedwait(&reached.more, &reached.lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&reached.lock);
}

/* ---- With the lock ---------------------------------------------------------------------------- */

static struct device_wait *wait_for_device(cl_device_id device) {
    struct device_wait *found = busy.waits;
    while (found && found->device != device)
        found = found->next;
    if (!found && (found = calloc(1, sizeof *found))) {
        found->device = device;
        found->next = busy.waits;
        busy.waits = found;
    }
    return found;
}

/* Commands that come later are waited for, too: the application has used up what it may submit now, or soon will have. */
static void *finish_fence(void *argument) {
    struct fence *fence = argument;
    clFinish(fence->held.queue);
    pthread_mutex_lock(&busy.lock);
    fence->is_finished = 1;
    busy.finishers--;
    pthread_mutex_unlock(&busy.lock);
    count_one_reached();
    return NULL;
}

/* A thread that finishes the queue of the fence; 0: there is none. */
static int start_finisher(struct fence *fence) {
    pthread_t thread;
    sigset_t all, before;
    if (busy.finishers == MOST_FINISHERS)
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = pthread_create(&thread, NULL, finish_fence, fence) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        pthread_detach(thread);
        busy.finishers++;
    }
    return started;
}

/* One that has not come back waits for what the queue has got since, too. */
static int has_finisher(cl_command_queue queue) {
    const struct fence *found = busy.fences;
    while (found && !(found->held.queue == queue && !found->event && !found->is_finished))
        found = found->next;
    return found != NULL;
}

/* Puts a fence behind what the queue has. Where there can be none its work counts as what comes after it. */
static void fence_queue(const struct busy_queue *queue) {
    struct fence *fence = has_finisher(queue->held.queue) ? NULL : calloc(1, sizeof *fence);
    if (!fence) {
        opencl_let_go_queue(queue->held);
        return;
    }
    *fence = (struct fence){.held = queue->held, .device = queue->device};
    if (opencl_enqueue_own_marker(fence->held.queue, &fence->event) != CL_SUCCESS) {
        fence->event = NULL;
        if (!start_finisher(fence)) {
            opencl_let_go_queue(fence->held);
            free(fence);
            return;
        }
    }
    fence->next = busy.fences;
    busy.fences = fence;
    if (!fence->event)
        return;
    clSetEventCallback(fence->event, CL_COMPLETE, note_reached, NULL);
    clFlush(fence->held.queue);
}

/* All whose queue is one of the device, or of the context. */
static void fence_busy_queues(cl_device_id device, cl_context context) {
    for (size_t at = 0; at < busy.count;) {
        struct busy_queue found = busy.queues[at];
        if (found.device != device && found.held.context != context) {
            at++;
            continue;
        }
        busy.queues[at] = busy.queues[--busy.count];
        fence_queue(&found);
    }
}

static void let_go_fence(struct fence *fence) {
    if (fence->event)
        clReleaseEvent(fence->event);
    opencl_let_go_queue(fence->held);
    free(fence);
}

/* Lets go of the fences that are reached. Whether one of the device, or of the context, is not; of those that the application may hold
 * back only if they are to be waited for. */
static int has_fences(cl_device_id device, cl_context context, int waits_for_held_back) {
    int has = 0;
    for (struct fence **at = &busy.fences; *at;) {
        struct fence *fence = *at;
        if (fence->event ? opencl_has_ended(fence->event) : fence->is_finished) {
            *at = fence->next;
            let_go_fence(fence);
            continue;
        }
        has |= (fence->device == device || fence->held.context == context) && (fence->event || waits_for_held_back);
        at = &fence->next;
    }
    return has;
}

/* ---- Waiting ---------------------------------------------------------------------------------- */

/* Waits until the device has done what this process had given it when this wait began. Negative: it has not yet, and is asked again;
 * positive: it does not any longer. */
int opencl_drain(const struct aviary_drain *asked) {
    cl_device_id device = (cl_device_id)(uintptr_t)asked->device;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct timespec until = opencl_later(now, asked->patience_ns);
    for (;;) {
        uint64_t counted = count_reached();
        pthread_mutex_lock(&busy.lock);
        struct device_wait *wait = wait_for_device(device);
        if (wait && wait->number != asked->wait) {
            wait->number = asked->wait;
            wait->since = now;
            fence_busy_queues(device, NULL);
        }
        int gives_up = wait && opencl_has_passed(opencl_later(wait->since, PATIENCE_NS));
        int at_work = has_fences(device, NULL, !gives_up);
        int has_given_up = !at_work && has_fences(device, NULL, 1);
        pthread_mutex_unlock(&busy.lock);
        if (!at_work)
            return has_given_up;
        if (opencl_has_passed(until))
            return -1;
        await_reached(counted, until);
    }
}

/* ---- Ends --------------------------------------------------------------------------------------- */

void opencl_let_go_reached(void) {
    pthread_mutex_lock(&busy.lock);
    has_fences(NULL, NULL, 0);
    pthread_mutex_unlock(&busy.lock);
}

/* What is held of a context here would make it live longer than the application expects: whoever has waited for its commands finds
 * that the context's last release destroys it, and tells so. */
static cl_int release_context(cl_context context) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until = opencl_later(until, RELEASE_NS);
    for (int is_first = 1;; is_first = 0) {
        uint64_t counted = count_reached();
        pthread_mutex_lock(&busy.lock);
        if (is_first)
            fence_busy_queues(NULL, context);
        int at_work = has_fences(NULL, context, 0);
        pthread_mutex_unlock(&busy.lock);
        if (!at_work || opencl_has_passed(until))
            return clReleaseContext(context);
        await_reached(counted, until);
    }
}

void *opencl_release_context_function(void) {
    return (void *)release_context;
}
