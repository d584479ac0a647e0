/* Queries for the node's device scheduler: the device of a queue, and the completion of the work that this process gave it.
 * For the second each queue that has had work gets a marker behind it once somebody asks; the markers are waited for. */
#include "server.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* Queues that got work since the last marker was put behind it. */
struct busy_queue {
    cl_command_queue queue;
    cl_device_id device;
    /* Which of all calls began last to give it work. */
    uint64_t begun;
};
struct fence {
    cl_device_id device;
    cl_event event;
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
    /* The application may hold commands back. */
    int user_events;
} busy = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Marks that were reached, ever. Callbacks of the vendor's write here, so no function of the vendor's is called under this lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    uint64_t count;
} reached = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

/* How long a wait may take where the application holds commands back, with a call that is still to come perhaps. */
#define PATIENCE_NS 20000000

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
    while (at < busy.count && busy.queues[at].queue != queue)
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
    if (at == busy.count && busy.count < busy.room && clRetainCommandQueue(queue) == CL_SUCCESS)
        busy.queues[busy.count++] = (struct busy_queue){queue, device, 0};
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
    int is_all = before.queue && !aviary_device_gets_work((uint64_t)(uintptr_t)before.device);
    if (before.queue)
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
        clReleaseCommandQueue(queue);
    return status;
}

void *opencl_finish_function(void) {
    return (void *)finish;
}

void opencl_note_user_event(void) {
    __atomic_store_n(&busy.user_events, 1, __ATOMIC_RELAXED);
}

static void CL_CALLBACK note_reached(cl_event event, cl_int status, void *unused) {
    (void)event;
    (void)status;
    (void)unused;
    pthread_mutex_lock(&reached.lock);
    reached.count++;
    pthread_cond_broadcast(&reached.more);
    pthread_mutex_unlock(&reached.lock);
}

static uint64_t count_reached(void) {
    pthread_mutex_lock(&reached.lock);
    uint64_t count = reached.count;
    pthread_mutex_unlock(&reached.lock);
    return count;
}

/* Until a fence is reached that was not when they were counted, or that time has come. */
static void await_reached(uint64_t counted, struct timespec until) {
    pthread_mutex_lock(&reached.lock);
    while (reached.count == counted
           && pthread_cond_clockwait(&reached.more, &reached.lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT) {
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

/* Puts a marker behind what the queue has. Where that fails the queue is waited for here. */
static void fence_queue(cl_command_queue queue, cl_device_id device) {
    struct fence *fence = calloc(1, sizeof *fence);
    if (!fence || clEnqueueMarkerWithWaitList(queue, 0, NULL, &fence->event) != CL_SUCCESS) {
        free(fence);
        clFinish(queue);
        return;
    }
    fence->device = device;
    fence->next = busy.fences;
    busy.fences = fence;
    clSetEventCallback(fence->event, CL_COMPLETE, note_reached, NULL);
    clFlush(queue);
}

static void fence_busy_queues(cl_device_id device) {
    for (size_t at = 0; at < busy.count;) {
        struct busy_queue found = busy.queues[at];
        if (found.device != device) {
            at++;
            continue;
        }
        busy.queues[at] = busy.queues[--busy.count];
        fence_queue(found.queue, device);
        clReleaseCommandQueue(found.queue);
    }
}

/* Forgets the device's fences that are reached, or all of them; whether there are others. */
static int has_marks(cl_device_id device, int forget) {
    int others = 0;
    for (struct fence **at = &busy.fences; *at;) {
        struct fence *fence = *at;
        cl_int status = CL_COMPLETE;
        int is_left = fence->device == device && !forget
                      && clGetEventInfo(fence->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) == CL_SUCCESS
                      && status > CL_COMPLETE;
        others |= is_left;
        if (is_left || fence->device != device) {
            at = &fence->next;
            continue;
        }
        *at = fence->next;
        clReleaseEvent(fence->event);
        free(fence);
    }
    return others;
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
            fence_busy_queues(device);
        }
        int gives_up = wait && __atomic_load_n(&busy.user_events, __ATOMIC_RELAXED)
                       && opencl_has_passed(opencl_later(wait->since, PATIENCE_NS));
        int at_work = has_marks(device, gives_up);
        pthread_mutex_unlock(&busy.lock);
        if (!at_work)
            return gives_up;
        if (opencl_has_passed(until))
            return -1;
        await_reached(counted, until);
    }
}
