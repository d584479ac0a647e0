/* Runs a launch in parts.
 *
 * The application's queue gets a marker, which says when the launch may begin, and the launch's last part, which waits for a user
 * event; its event is the launch's. Everything in between runs on a queue of the launch's own, one sub-launch after the other, by a
 * thread that then sets the user event. So the application's queue stays in order, and its next commands wait for the last part. */

#include "slicing.h"
#include "../server.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* One thread per device: parts of different launches take turns. */
struct slice_worker {
    struct slice_worker *next;
    cl_device_id device;
    struct slice_job *first, **last;
    pthread_cond_t wake;
};
static pthread_mutex_t slice_workers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slice_worker *slice_workers;

/* ---- When sliced launches began ------------------------------------------------------------------ */

static struct slice_start *slice_starts;
static size_t slice_starts_count, slice_starts_sweep = 256;

/* Called with the lock held. */
static void sweep_slice_starts(void) {
    if (slice_starts_count < slice_starts_sweep)
        return;
    for (struct slice_start **at = &slice_starts, *start; (start = *at);) {
        const struct opencl_object *object = metadata(struct opencl_object, start->event);
        if (!start->noted || (object && object->sliced == start->serial)) {
            at = &start->next;
            continue;
        }
        *at = start->next;
        free(start);
        slice_starts_count--;
    }
    slice_starts_sweep = 2 * slice_starts_count + 256;
}

void slice_expect_start(cl_event event, unsigned long serial) {
    struct slice_start *start = calloc(1, sizeof *start);
    if (!start)
        return;
    pthread_mutex_lock(&slice_lock);
    sweep_slice_starts();
    *start = (struct slice_start){.next = slice_starts, .event = event, .serial = serial};
    slice_starts = start;
    slice_starts_count++;
    pthread_mutex_unlock(&slice_lock);
}

/* Called with the lock held. */
struct slice_start *slice_start_of(unsigned long serial) {
    struct slice_start *start = slice_starts;
    while (start && start->serial != serial)
        start = start->next;
    return start;
}

/* ---- Parts --------------------------------------------------------------------------------------- */

/* `left` in as few pieces of at most `most` as it takes, all about equal: the size of the first. */
static size_t even_submission(size_t left, size_t most) {
    size_t pieces = (left + most - 1) / most;
    return (left + pieces - 1) / pieces;
}

size_t slice_next_box(const struct slice_range *range, size_t at, size_t limit, size_t most, struct slice_box *box) {
    size_t row = range->groups[0], rows = range->groups[1];
    size_t x = at % row, y = at / row % rows, z = at / row / rows, left = limit - at;
    *box = (struct slice_box){{x, y, z}, {1, 1, 1}};
    most = most ? most : 1;
    if (x > 0 || most < row || left < row) {
        box->count[0] = even_submission(slice_smaller(row - x, left), most);
    } else if (y > 0 || most / row < rows || left / row < rows) {
        box->count[0] = row;
        box->count[1] = even_submission(slice_smaller(rows - y, left / row), most / row);
    } else {
        box->count[0] = row;
        box->count[1] = rows;
        box->count[2] = even_submission(left / row / rows, most / row / rows);
    }
    return box->count[0] * box->count[1] * box->count[2];
}

cl_int slice_set_hidden(cl_kernel kernel, cl_uint index, const size_t *values) {
    cl_ulong4 vector = {{values[0], values[1], values[2], 0}};
    return clSetKernelArg(kernel, index, sizeof vector, &vector);
}

cl_int slice_enqueue_box(struct slice_job *job, cl_command_queue queue, const struct slice_box *box, cl_uint waits,
                         const cl_event *wait_list, cl_event *event) {
    const struct slice_range *range = &job->range;
    size_t offset[3], size[3];
    for (int d = 0; d < 3; d++) {
        size_t begin = box->first[d] * range->local[d];
        offset[d] = range->offset[d] + begin;
        /* The last group may be slice_smaller than the others. */
        size[d] = slice_smaller(box->count[d] * range->local[d], range->size[d] - begin);
    }
    cl_int status = job->rewritten ? slice_set_hidden(job->kernel, job->hidden + 3, box->first) : CL_SUCCESS;
    return status != CL_SUCCESS
               ? status
               : clEnqueueNDRangeKernel(queue, job->kernel, range->dimensions, offset, size, range->local, waits, wait_list, event);
}

/* Runs a box to its end and says how long it was on the device. */
static cl_int run_box(struct slice_job *job, const struct slice_box *box, size_t groups, double *ns) {
    cl_event event = NULL;
    cl_int ended = CL_COMPLETE, status = slice_enqueue_box(job, job->queue, box, 0, NULL, &event);
    if (status != CL_SUCCESS)
        return status;
    clFlush(job->queue);
    status = clWaitForEvents(1, &event);
    if (clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof ended, &ended, NULL) == CL_SUCCESS && ended < 0)
        status = ended;
    cl_ulong start = 0, end = 0;
    if (status == CL_SUCCESS)
        status = clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof start, &start, NULL);
    if (status == CL_SUCCESS)
        status = clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
    clReleaseEvent(event);
    if (job->launches++ == 0)
        job->first_start = start;
    *ns = end > start ? (double)(end - start) : 1;
    if (*ns > job->longest_ns) {
        job->longest_ns = *ns;
        job->longest_groups = groups;
    }
    job->total_ns += *ns;
    job->late += *ns > 2 * slice_settings.slice_ns;
    return status;
}

/* Whole rounds of the device's units, so that none idles at the end. */
static size_t whole_rounds(const struct slice_job *job, double groups) {
    size_t count = groups < (double)job->range.total ? (size_t)groups : job->range.total;
    if (count > job->units && count < 64 * job->units)
        count -= count % job->units;
    return count > job->least ? count : job->least;
}

/* How many work-groups the next part gets, after one of `count`. What is unknown is tried with few, then with four times as many. */
static size_t next_count(const struct slice_job *job, size_t count) {
    if (slice_settings.fixed_groups)
        return slice_settings.fixed_groups;
    if (job->group_ns == 0)
        return job->least;
    double fitting = slice_settings.slice_ns / job->group_ns, most = 4.0 * (double)count;
    return whole_rounds(job, count == 0 || fitting < most ? fitting : most);
}

static cl_int run_submissions(struct slice_job *job) {
    cl_int status = job->status;
    size_t count = 0;
    double ns = 0;
    for (size_t at = 0; status == CL_SUCCESS && at < job->limit; at += count) {
        struct slice_box box;
        count = slice_next_box(&job->range, at, job->limit, next_count(job, count), &box);
        status = run_box(job, &box, count, &ns);
        double group_ns = ns / (double)count;
        /* Believed at once when it costs more, by and by when it costs less. */
        job->group_ns = group_ns > job->group_ns ? group_ns : (job->group_ns + group_ns) / 2;
        /* The part has finished on the device and the next one is not there yet: other tenants may have it. */
        aviary_device_pause(opencl_device(job->queue));
    }
    return status;
}

/* ---- Launches ------------------------------------------------------------------------------------ */

/* All that keeps the application's objects: once the launch is over, it may let go of them in its own order (references.c). */
static void let_go_of_objects(struct slice_job *job) {
    if (job->begin)
        clReleaseEvent(job->begin);
    if (job->queue)
        clReleaseCommandQueue(job->queue);
    if (job->kernel)
        clReleaseKernel(job->kernel);
    job->begin = NULL;
    job->queue = NULL;
    job->kernel = NULL;
}

void slice_free_job(struct slice_job *job) {
    let_go_of_objects(job);
    if (job->submissions_done)
        clReleaseEvent(job->submissions_done);
    pthread_mutex_lock(&slice_lock);
    if (job->program)
        job->program->uses--;
    pthread_mutex_unlock(&slice_lock);
    free(job);
}

static void run_slice_job(struct slice_job *job) {
    cl_int status = run_submissions(job);
    pthread_mutex_lock(&slice_lock);
    struct slice_start *start = slice_start_of(job->serial);
    if (start)
        start->ns = job->first_start;
    if (status == CL_SUCCESS && job->limit > 0)
        slice_learn_cost(job->code, job->likeness, job->total_ns / (double)job->limit);
    pthread_mutex_unlock(&slice_lock);
    if (slice_settings.told || (status != CL_SUCCESS && job->launches > 0))
        aviary_log("sliced %s: %zu work-groups, %zu sub-launches, longest %.3f ms (%zu work-groups), %zu longer than two slices, "
                   "all %.3f ms, status %d",
                   job->code->name, job->range.total, job->launches + 1, job->longest_ns / 1e6, job->longest_groups, job->late,
                   job->total_ns / 1e6, status);
    let_go_of_objects(job);
    /* A part that failed ends the launch's own event with its error. */
    opencl_set_status(job->submissions_done, status == CL_SUCCESS ? CL_COMPLETE : status);
    slice_free_job(job);
}

static void *work_on_slices(void *argument) {
    struct slice_worker *worker = argument;
    for (;;) {
        pthread_mutex_lock(&slice_workers_lock);
        while (!worker->first)
            pthread_cond_wait(&worker->wake, &slice_workers_lock);
        struct slice_job *job = worker->first;
        worker->first = job->next;
        if (!worker->first)
            worker->last = &worker->first;
        pthread_mutex_unlock(&slice_workers_lock);
        run_slice_job(job);
    }
    return NULL;
}

struct slice_worker *slice_worker_of(cl_device_id device) {
    cl_device_id parent = NULL;
    while (clGetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL) == CL_SUCCESS && parent)
        device = parent;
    pthread_mutex_lock(&slice_workers_lock);
    struct slice_worker *worker = slice_workers;
    while (worker && worker->device != device)
        worker = worker->next;
    if (!worker && (worker = calloc(1, sizeof *worker))) {
        pthread_t thread;
        sigset_t all, before;
        *worker = (struct slice_worker){.next = slice_workers, .device = device, .last = &worker->first};
        pthread_cond_init(&worker->wake, NULL);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        if (pthread_create(&thread, NULL, work_on_slices, worker) == 0) {
            pthread_detach(thread);
            slice_workers = worker;
        } else {
            free(worker);
            worker = NULL;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_mutex_unlock(&slice_workers_lock);
    return worker;
}

/* The work before the launch has finished, or failed. */
void CL_CALLBACK slice_may_begin(cl_event event, cl_int status, void *argument) {
    struct slice_job *job = argument;
    (void)event;
    job->status = status < 0 ? CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST : CL_SUCCESS;
    job->next = NULL;
    pthread_mutex_lock(&slice_workers_lock);
    *job->worker->last = job;
    job->worker->last = &job->next;
    pthread_cond_signal(&job->worker->wake);
    pthread_mutex_unlock(&slice_workers_lock);
}
