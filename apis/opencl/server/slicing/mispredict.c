/* Watches launches that went whole because they were predicted to be short. One that took far longer is forgotten: the next like it
 * goes in parts and is measured again; after some of those, always. What it waited for counts as well: that errs on the side of parts. */
#include "slicing.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* The late submission that has not been looked at. Callbacks of the vendor's write here, so no function of the vendor's is called under the lock. */
enum { SLICE_LATE = 64 };
static struct {
    unsigned long code;
    cl_ulong likeness;
} slice_late[SLICE_LATE];
static unsigned slice_late_next;
static double slice_last_end_ns;
static pthread_mutex_t slice_late_lock = PTHREAD_MUTEX_INITIALIZER;

double slice_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void CL_CALLBACK watched(cl_event event, cl_int status, void *argument) {
    struct slice_watch *watch = argument;
    double now = slice_now_ns();
    (void)event;
    (void)status;
    pthread_mutex_lock(&slice_late_lock);
    double begin = slice_last_end_ns > watch->since_ns ? slice_last_end_ns : watch->since_ns;
    slice_last_end_ns = now;
    if (now - begin > 4 * slice_settings.slice_ns) {
        slice_late[slice_late_next % SLICE_LATE].code = watch->code;
        slice_late[slice_late_next++ % SLICE_LATE].likeness = watch->likeness;
    }
    pthread_mutex_unlock(&slice_late_lock);
    free(watch);
}

void slice_watch_launch(struct slice_watch watch, cl_event event) {
    struct slice_watch *kept = malloc(sizeof *kept);
    if (!kept)
        return;
    *kept = watch;
    if (clSetEventCallback(event, CL_COMPLETE, watched, kept) != CL_SUCCESS)
        free(kept);
}

/* Called with the lock of the records held. */
void slice_doubt_late_costs(struct slice_code *code) {
    pthread_mutex_lock(&slice_late_lock);
    for (int i = 0; i < SLICE_LATE; i++) {
        struct slice_cost *cost = slice_late[i].code == code->number ? slice_cost_of(code, slice_late[i].likeness) : NULL;
        if (slice_late[i].code == code->number)
            slice_late[i].code = 0;
        if (cost) {
            cost->group_ns = 0;
            cost->late++;
        }
    }
    pthread_mutex_unlock(&slice_late_lock);
}
