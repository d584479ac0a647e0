/* Commands under way that use an allocation of unified shared memory: clMemBlockingFreeINTEL waits for these and for no others, as
 * runtimes do natively. A wait for a whole queue could last forever: commands in it may wait for what the application does next. */
#include "usm_uses.h"
#include "server.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct usm_uses {
    cl_event *events;
    size_t count, room;
};

static int is_over(cl_event event) {
    cl_int status = CL_COMPLETE;
    return clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) != CL_SUCCESS
           || status <= CL_COMPLETE;
}

static void forget_ended(struct usm_uses *uses) {
    size_t kept = 0;
    for (size_t i = 0; i < uses->count; i++) {
        if (is_over(uses->events[i]))
            opencl_let_go_event(uses->events[i]);
        else
            uses->events[kept++] = uses->events[i];
    }
    uses->count = kept;
}

/* 0: there is no memory for it. */
static int has_room(struct usm_uses *uses) {
    if (uses->count == uses->room)
        forget_ended(uses);
    /* Half of it stays free, so that the ended ones are looked for now and then only. */
    if (uses->count * 2 < uses->room)
        return 1;
    size_t room = uses->room ? 2 * uses->room : 4;
    cl_event *larger = realloc(uses->events, room * sizeof *larger);
    if (!larger)
        return uses->count < uses->room;
    uses->events = larger;
    uses->room = room;
    return 1;
}

void usm_use(const void *pointer, cl_event event) {
    if (!pointer || !event)
        return;
    usm_lock();
    struct usm_range *range = usm_at(pointer, 0);
    if (range && !range->uses)
        range->uses = calloc(1, sizeof *range->uses);
    struct usm_uses *uses = range ? range->uses : NULL;
    if (uses && (uses->count < uses->room || has_room(uses))) {
        opencl_hold_event(event);
        uses->events[uses->count++] = event;
    }
    usm_unlock();
}

void usm_uses_wait(struct usm_uses *uses) {
    /* An event that ended with an error makes the wait fail: the others are waited for all the same. */
    for (size_t i = 0; uses && i < uses->count; i++)
        clWaitForEvents(1, &uses->events[i]);
}

void usm_uses_drop(struct usm_uses *uses) {
    for (size_t i = 0; uses && i < uses->count; i++)
        opencl_let_go_event(uses->events[i]);
    if (uses)
        free(uses->events);
    free(uses);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* The pointers that a kernel has as arguments. */
struct usm_kernel {
    struct usm_kernel *next;
    cl_kernel kernel;
    const void **pointers;
    cl_uint count;
};

static struct {
    pthread_mutex_t lock;
    struct usm_kernel *first;
    size_t count, sweep_at;
} kernels = {.lock = PTHREAD_MUTEX_INITIALIZER, .sweep_at = 64};

/* Records of kernels that are gone. With the lock. */
static void sweep(void) {
    for (struct usm_kernel **at = &kernels.first, *record; (record = *at);) {
        const struct opencl_object *object = metadata(struct opencl_object, record->kernel);
        if (object && object->usm_kernel == record) {
            at = &record->next;
            continue;
        }
        *at = record->next;
        kernels.count--;
        free(record->pointers);
        free(record);
    }
    kernels.sweep_at = 2 * kernels.count + 64;
}

/* The kernel's record, made if there is none; NULL: there is no memory for it. With the lock. */
static struct usm_kernel *record_of(cl_kernel kernel) {
    struct opencl_object *object = metadata(struct opencl_object, kernel);
    cl_uint count = 0;
    if (!object || object->usm_kernel)
        return object ? object->usm_kernel : NULL;
    if (clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL) != CL_SUCCESS)
        return NULL;
    if (kernels.count >= kernels.sweep_at)
        sweep();
    struct usm_kernel *record = calloc(1, sizeof *record);
    const void **pointers = calloc((size_t)count + 1, sizeof *pointers);
    if (!record || !pointers) {
        free(record);
        free(pointers);
        return NULL;
    }
    *record = (struct usm_kernel){kernels.first, kernel, pointers, count};
    kernels.first = record;
    kernels.count++;
    object->usm_kernel = record;
    return record;
}

void opencl_usm_keep_argument(cl_kernel kernel, cl_uint index, const void *pointer) {
    pthread_mutex_lock(&kernels.lock);
    struct usm_kernel *record = record_of(kernel);
    if (record && index < record->count)
        record->pointers[index] = pointer;
    pthread_mutex_unlock(&kernels.lock);
}

void opencl_usm_keep_clone(cl_kernel source, cl_kernel clone) {
    const struct opencl_object *object = metadata(struct opencl_object, source);
    if (!object || !object->usm_kernel)
        return;
    pthread_mutex_lock(&kernels.lock);
    const struct usm_kernel *from = object->usm_kernel;
    struct usm_kernel *to = record_of(clone);
    for (cl_uint i = 0; to && i < to->count && i < from->count; i++)
        to->pointers[i] = from->pointers[i];
    pthread_mutex_unlock(&kernels.lock);
}

/* The launch of this event uses the kernel's pointers. */
void opencl_usm_note_launch(cl_kernel kernel, cl_event event) {
    const struct opencl_object *object = metadata(struct opencl_object, kernel);
    if (!object || !object->usm_kernel)
        return;
    pthread_mutex_lock(&kernels.lock);
    const struct usm_kernel *record = object->usm_kernel;
    for (cl_uint i = 0; i < record->count; i++)
        usm_use(record->pointers[i], event);
    pthread_mutex_unlock(&kernels.lock);
}

typedef cl_int (*launch_function)(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint,
                                  const cl_event *, cl_event *);

static cl_int launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset, const size_t *size,
                     const size_t *local, cl_uint waits, const cl_event *wait_list, cl_event *event) {
    launch_function plain = (launch_function)opencl_launch_function();
    const struct opencl_object *object = metadata(struct opencl_object, kernel);
    cl_event own = NULL;
    /* An event that the application asked for is noted when it is an object of the application's. */
    cl_event *told = event || !object || !object->usm_kernel ? event : &own;
    cl_int status = plain(queue, kernel, dimensions, offset, size, local, waits, wait_list, told);
    if (own) {
        opencl_usm_note_launch(kernel, own);
        clReleaseEvent(own);
    }
    return status;
}

void *opencl_usm_launch_function(void) {
    return (void *)launch;
}

/* The copy or fill of this event uses both, where they are allocations. */
void opencl_usm_note_copy(const void *to, const void *from, cl_event event) {
    usm_use(to, event);
    usm_use(from, event);
}
