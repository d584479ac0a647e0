/* What this server holds of the vendor's objects for purposes of its own, and when it may put commands of its own into the application's
 * queues. A program that is correct without this server must stay correct with it, also where the vendor's library is not:
 *
 * - PoCL 3.1 ends its process where an event fails that waits for another and that nobody holds any more, and where a command ends
 *   while an event that waits for it, and failed before because of another one, is gone. An application that lives with that holds the
 *   events of its commands. A marker of this server's, which the application does not know, would be one more of them. So there is none
 *   behind a user event that nobody has set: only such an event can fail what is behind it.
 * - PoCL 3.1 looks into the device after it has let go of a queue's context: a queue, or an event of it, that is released after its
 *   context ends the process, as the context may have kept a part of a device. So whoever holds a queue here holds its context, too. */
#include "server.h"
#include <pthread.h>
#include <stdlib.h>

/* ---- Queues ------------------------------------------------------------------------------------- */

/* The queues that are held, once for each time. Not in their metadata: who looks that up between two calls uses the object until the
 * next one. The lock is held while references are counted, so that an application that asks for a number is told its own. */
static struct {
    pthread_mutex_t lock;
    struct opencl_held_queue *all;
    size_t count, room;
} held_queues = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock. */
static int has_room_for_queue(void) {
    if (held_queues.count < held_queues.room)
        return 1;
    size_t room = held_queues.room ? 2 * held_queues.room : 16;
    struct opencl_held_queue *larger = realloc(held_queues.all, room * sizeof *larger);
    if (larger) {
        held_queues.all = larger;
        held_queues.room = room;
    }
    return larger != NULL;
}

/* With the lock. */
static int hold(struct opencl_held_queue held) {
    if (!has_room_for_queue() || clRetainContext(held.context) != CL_SUCCESS)
        return 0;
    if (clRetainCommandQueue(held.queue) != CL_SUCCESS) {
        clReleaseContext(held.context);
        return 0;
    }
    held_queues.all[held_queues.count++] = held;
    return 1;
}

int opencl_hold_queue(cl_command_queue queue, struct opencl_held_queue *held) {
    *held = (struct opencl_held_queue){.queue = queue};
    if (clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof held->context, &held->context, NULL) != CL_SUCCESS)
        return 0;
    pthread_mutex_lock(&held_queues.lock);
    int holds = hold(*held);
    pthread_mutex_unlock(&held_queues.lock);
    return holds;
}

void opencl_let_go_queue(struct opencl_held_queue held) {
    pthread_mutex_lock(&held_queues.lock);
    size_t at = held_queues.count;
    while (at-- > 0 && held_queues.all[at].queue != held.queue) {
    }
    held_queues.all[at] = held_queues.all[--held_queues.count];
    clReleaseCommandQueue(held.queue);
    clReleaseContext(held.context);
    pthread_mutex_unlock(&held_queues.lock);
}

/* How often the queue, or the context, is held. With the lock. */
static cl_uint times_held(cl_command_queue queue, cl_context context) {
    cl_uint times = 0;
    for (size_t at = 0; at < held_queues.count; at++)
        times += held_queues.all[at].queue == queue || held_queues.all[at].context == context;
    return times;
}

/* Counts of references as the application made them. */
static cl_int queue_info(cl_command_queue queue, cl_command_queue_info name, size_t size, void *value, size_t *size_ret) {
    if (name != CL_QUEUE_REFERENCE_COUNT)
        return clGetCommandQueueInfo(queue, name, size, value, size_ret);
    opencl_let_go_reached();
    pthread_mutex_lock(&held_queues.lock);
    cl_int status = clGetCommandQueueInfo(queue, name, size, value, size_ret);
    if (status == CL_SUCCESS && value)
        *(cl_uint *)value -= times_held(queue, NULL);
    pthread_mutex_unlock(&held_queues.lock);
    return status;
}

void *opencl_queue_info_function(void) {
    return (void *)queue_info;
}

cl_int opencl_context_references(cl_context context, size_t size, void *value, size_t *size_ret) {
    opencl_let_go_reached();
    pthread_mutex_lock(&held_queues.lock);
    cl_int status = clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, size, value, size_ret);
    if (status == CL_SUCCESS && value)
        *(cl_uint *)value -= times_held(NULL, context);
    pthread_mutex_unlock(&held_queues.lock);
    return status;
}

/* ---- Events ------------------------------------------------------------------------------------- */

static void count_own(cl_event event, int change) {
    struct opencl_object *object = metadata(struct opencl_object, event);
    if (object)
        __atomic_add_fetch(&object->own_references, change, __ATOMIC_RELAXED);
}

cl_uint opencl_own_references(cl_event event) {
    const struct opencl_object *object = metadata(struct opencl_object, event);
    return object ? (cl_uint)__atomic_load_n(&object->own_references, __ATOMIC_RELAXED) : 0;
}

/* The event lives until its callback has run in the application, which may ask it something there. */
void opencl_hold_event(cl_event event) {
    if (clRetainEvent(event) == CL_SUCCESS)
        count_own(event, 1);
}

void opencl_let_go_event(cl_event event) {
    count_own(event, -1);
    clReleaseEvent(event);
}

/* ---- User events -------------------------------------------------------------------------------- */

/* The application's that it has not set. Those that it let go without that are among them until a later call looks. */
struct unset_event {
    cl_event event;
    /* A command was given it to wait for. */
    int awaited;
};
static struct {
    pthread_mutex_t lock;
    struct unset_event *events;
    size_t count, room;
    /* How many commands wait for, directly. */
    size_t awaited;
    /* Where the next look is. */
    size_t looked_at;
    /* There was no memory for one: nothing tells whether it was set. */
    int unknown;
} unset = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Calls that are about to fail events, or have not come back from it. */
static int failing;

/* The place of a user event in the list, from 1. With the lock, in a call. */
static size_t *place_of(cl_event event) {
    struct opencl_object *object = metadata(struct opencl_object, event);
    return object ? &object->unset_at : NULL;
}

/* With the lock, in a call. */
static void remove_unset(size_t at) {
    unset.awaited -= (size_t)unset.events[at].awaited;
    struct unset_event moved = unset.events[--unset.count];
    size_t *place = place_of(moved.event);
    unset.events[at] = moved;
    if (place && *place == unset.count + 1)
        *place = at + 1;
}

/* The metadata ends with the application's last reference, and is zero for another object that gets the address. Two are looked at for
 * each that comes or goes. With the lock, in a call. */
static void remove_let_go(void) {
    for (int looks = 0; looks < 2 && unset.count; looks++) {
        size_t at = unset.looked_at++ % unset.count;
        const size_t *place = place_of(unset.events[at].event);
        if (!place || *place != at + 1)
            remove_unset(at);
    }
}

/* With the lock. */
static int has_room_for_event(void) {
    if (unset.count < unset.room)
        return 1;
    size_t room = unset.room ? 2 * unset.room : 16;
    struct unset_event *larger = realloc(unset.events, room * sizeof *larger);
    if (larger) {
        unset.events = larger;
        unset.room = room;
    }
    return larger != NULL;
}

/* The application has made it. Commands behind it come later. */
void opencl_note_user_event(cl_event event) {
    pthread_mutex_lock(&unset.lock);
    remove_let_go();
    size_t *place = place_of(event);
    if (place && has_room_for_event()) {
        unset.events[unset.count++] = (struct unset_event){.event = event};
        *place = unset.count;
    } else
        unset.unknown = 1;
    pthread_mutex_unlock(&unset.lock);
}

/* The vendor has done all that follows from its status. */
void opencl_note_set_event(cl_event event) {
    pthread_mutex_lock(&unset.lock);
    size_t *place = place_of(event);
    if (place && *place) {
        size_t at = *place - 1;
        *place = 0;
        remove_unset(at);
    }
    remove_let_go();
    pthread_mutex_unlock(&unset.lock);
}

/* The application has given the vendor a command that waits for these. One that waits for such a command waits for them, too, but need
 * not be looked at. */
void opencl_note_wait_list(cl_uint count, const cl_event *events) {
    if (!events || !__atomic_load_n(&unset.count, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&unset.lock);
    for (cl_uint i = 0; i < count; i++) {
        const size_t *place = place_of(events[i]);
        struct unset_event *found = place && *place ? &unset.events[*place - 1] : NULL;
        if (found && !found->awaited) {
            found->awaited = 1;
            unset.awaited++;
        }
    }
    pthread_mutex_unlock(&unset.lock);
}

/* With the lock where the answer is true: there are none of these user events, and there cannot be. */
static int begin_without(const size_t *events) {
    pthread_mutex_lock(&unset.lock);
    if (!*events && !unset.unknown)
        return 1;
    pthread_mutex_unlock(&unset.lock);
    return 0;
}

int opencl_begin_own_commands(void) {
    return begin_without(&unset.count);
}

void opencl_end_own_commands(void) {
    pthread_mutex_unlock(&unset.lock);
}

static int has_any(const size_t *events) {
    if (!begin_without(events))
        return 1;
    opencl_end_own_commands();
    return 0;
}

int opencl_has_unset_events(void) {
    return has_any(&unset.count);
}

int opencl_has_awaited_events(void) {
    return has_any(&unset.awaited);
}

static cl_int enqueue_marker_without(const size_t *events, cl_command_queue queue, cl_event *marker) {
    if (!begin_without(events))
        return CL_INVALID_OPERATION;
    cl_int status = clEnqueueMarkerWithWaitList(queue, 0, NULL, marker);
    opencl_end_own_commands();
    return status;
}

cl_int opencl_enqueue_own_marker(cl_command_queue queue, cl_event *marker) {
    return enqueue_marker_without(&unset.count, queue, marker);
}

cl_int opencl_enqueue_last_marker(cl_command_queue queue, cl_event *marker) {
    return enqueue_marker_without(&unset.awaited, queue, marker);
}

cl_int opencl_set_status(cl_event event, cl_int status) {
    if (status >= CL_COMPLETE)
        return clSetUserEventStatus(event, status);
    __atomic_add_fetch(&failing, 1, __ATOMIC_SEQ_CST);
    cl_int done = clSetUserEventStatus(event, status);
    __atomic_sub_fetch(&failing, 1, __ATOMIC_SEQ_CST);
    return done;
}

void *opencl_set_status_function(void) {
    return (void *)opencl_set_status;
}

int opencl_has_ended(cl_event event) {
    cl_int status = CL_COMPLETE;
    if (clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) != CL_SUCCESS)
        return 1;
    /* The vendor may still be at what follows from its failure, and look at the event again. */
    return status == CL_COMPLETE || (status < CL_COMPLETE && !__atomic_load_n(&failing, __ATOMIC_SEQ_CST));
}
