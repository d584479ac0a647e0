/* Which launches run in parts (run.c says how): those whose predicted time exceeds the slice, or whose cost nobody knows yet. */
#include "slicing.h"
#include "../server.h"
#include <pthread.h>
#include <stdlib.h>

static _Thread_local unsigned long sliced_here;

/* ---- Sizes --------------------------------------------------------------------------------------- */

static size_t largest_divisor(size_t of, size_t most) {
    size_t divisor = slice_smaller(of, most);
    while (of % divisor)
        divisor--;
    return divisor;
}

/* The work-group size where the application leaves it to the implementation: up to 256 work-items that divide the range. If the kernel
 * requires a size, leaving it out may be an error, which is the vendor's to tell. */
static int choose_local(cl_kernel kernel, cl_device_id device, cl_uint dimensions, const size_t *size, size_t *local) {
    size_t required[3] = {0}, most = 0, left;
    if (clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof required, required, NULL) == CL_SUCCESS
        && required[0])
        return 0;
    if (clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL) != CL_SUCCESS || most == 0)
        return 0;
    left = slice_smaller(most, 256);
    for (cl_uint d = 0; d < 3; d++) {
        local[d] = d < dimensions ? largest_divisor(size[d], left) : 1;
        left = left / local[d];
    }
    return 1;
}

/* The launch's range; 0 if the vendor had better look at it as it is. */
static int slice_range_of(struct slice_range *range, cl_kernel kernel, cl_device_id device, cl_uint dimensions, const size_t *offset,
                          const size_t *size, const size_t *local) {
    *range = (struct slice_range){.dimensions = dimensions, .size = {1, 1, 1}, .local = {1, 1, 1}, .total = 1};
    if (dimensions < 1 || dimensions > 3 || !size)
        return 0;
    for (cl_uint d = 0; d < dimensions; d++) {
        size_t end;
        range->offset[d] = offset ? offset[d] : 0;
        range->size[d] = size[d];
        if (size[d] == 0 || __builtin_add_overflow(range->offset[d], size[d], &end) || (local && (local[d] == 0 || local[d] > size[d])))
            return 0;
        if (local)
            range->local[d] = local[d];
    }
    if (!local && !choose_local(kernel, device, dimensions, range->size, range->local))
        return 0;
    for (int d = 0; d < 3; d++) {
        range->groups[d] = range->size[d] / range->local[d] + (range->size[d] % range->local[d] != 0);
        if (__builtin_mul_overflow(range->total, range->groups[d], &range->total))
            return 0;
    }
    return 1;
}

/* ---- Launches ------------------------------------------------------------------------------------ */

/* Marks in the queue when the launch may begin. A marker waits for all earlier commands also where the queue does not keep order: without
 * a list, and with PoCL's library in any case. */
static cl_int enqueue_begin_fence(struct slice_job *job, cl_command_queue queue, cl_context context, int in_order, cl_uint waits,
                         const cl_event *wait_list) {
    const unsigned char nothing = 0;
    cl_int status = CL_SUCCESS;
    if (in_order)
        return clEnqueueMarkerWithWaitList(queue, waits, wait_list, &job->begin);
    cl_mem unused = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof nothing, NULL, &status);
    if (status != CL_SUCCESS)
        return status;
    status = clEnqueueFillBuffer(queue, unused, &nothing, sizeof nothing, 0, sizeof nothing, waits, wait_list, &job->begin);
    clReleaseMemObject(unused);
    return status;
}

/* Puts the last part into the application's queue; the vendor checks the whole launch's arguments with it. */
static cl_int enqueue_last(struct slice_job *job, cl_command_queue queue, cl_event *event) {
    struct slice_box box;
    const struct slice_range *range = &job->range;
    cl_int status = CL_SUCCESS;
    slice_next_box(range, job->limit, range->total, range->total - job->limit, &box);
    if (job->rewritten) {
        const size_t *const values[] = {range->offset, range->size, range->groups};
        for (cl_uint i = 0; status == CL_SUCCESS && i < 3; i++)
            status = slice_set_hidden(job->kernel, job->hidden + i, values[i]);
    }
    return status == CL_SUCCESS ? slice_enqueue_box(job, queue, &box, 1, &job->submissions_done, event) : status;
}

/* A job for a launch that is worth it; NULL: the launch goes to the vendor as it is, to be watched if that is a guess. */
static struct slice_job *slice_job_for(struct slice_kernel *kernel, cl_device_id device, const struct slice_range *range,
                                       struct slice_watch *watch) {
    cl_uint units = 1;
    clGetDeviceInfo(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    size_t least = slice_settings.least_groups > units ? slice_settings.least_groups : units ? units : 1;
    if (slice_settings.fixed_groups)
        least = slice_settings.fixed_groups;
    if (range->total <= least)
        return NULL;
    struct slice_job *job = NULL;
    pthread_mutex_lock(&slice_lock);
    struct slice_code *code = slice_judged_code(kernel, device);
    if (code && code->verdict != SLICE_NEVER) {
        cl_ulong likeness = slice_likeness(kernel, device, range->size, range->local);
        slice_doubt_late_costs(code);
        const struct slice_cost *known = slice_cost_of(code, likeness);
        double cost = known ? known->group_ns : 0;
        int worth = slice_settings.fixed_groups || cost == 0 || known->late >= SLICE_DOUBTS || cost * (double)range->total > slice_settings.slice_ns;
        if (!worth)
            *watch = (struct slice_watch){code->number, likeness, slice_now_ns()};
        cl_kernel copy = worth ? slice_kernel_copy(kernel, device) : NULL;
        if (copy && (job = calloc(1, sizeof *job))) {
            *job = (struct slice_job){.kernel = copy, .hidden = kernel->count, .rewritten = code->verdict == SLICE_BY_REWRITING,
                                      .range = *range, .least = least, .units = units ? units : 1, .program = kernel->program,
                                      .code = code, .likeness = likeness, .group_ns = cost};
            /* The last part stays within its row. */
            job->limit = range->total - slice_smaller(least, range->groups[0]);
            kernel->program->uses++;
        } else if (copy) {
            clReleaseKernel(copy);
        }
    }
    pthread_mutex_unlock(&slice_lock);
    return job;
}

/* True if the launch is on its way in submissions. If not, nothing of it has happened. */
static int launch_sliced(struct slice_job *job, cl_command_queue queue, cl_device_id device, cl_uint waits, const cl_event *wait_list,
                           cl_event *event) {
    static unsigned long serials;
    cl_context context = NULL;
    cl_command_queue_properties properties = 0;
    cl_int status = clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    if (status == CL_SUCCESS)
        status = clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    if (status == CL_SUCCESS)
        job->queue = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &status);
    if (status == CL_SUCCESS)
        job->submissions_done = clCreateUserEvent(context, &status);
    if (status != CL_SUCCESS || !(job->worker = slice_worker_of(device)))
        return 0;
    /* What may fail because of a user event goes whole: the application may live with the failure of one command only (references.c). */
    if (!opencl_begin_own_commands())
        return 0;
    status = enqueue_begin_fence(job, queue, context, !(properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE), waits, wait_list);
    if (status == CL_SUCCESS)
        status = enqueue_last(job, queue, event);
    opencl_end_own_commands();
    if (status != CL_SUCCESS)
        return 0;
    job->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
    if (event && (properties & CL_QUEUE_PROFILING_ENABLE)) {
        slice_expect_start(*event, job->serial);
        sliced_here = job->serial;
    }
    cl_event begin = job->begin, submissions_done = job->submissions_done;
    clRetainEvent(begin);
    clRetainEvent(submissions_done);
    /* From here on the job belongs to the callback. */
    if (clSetEventCallback(begin, CL_COMPLETE, slice_may_begin, job) != CL_SUCCESS) {
        opencl_set_status(submissions_done, CL_OUT_OF_RESOURCES);
        slice_free_job(job);
    }
    clReleaseEvent(begin);
    clReleaseEvent(submissions_done);
    clFlush(queue);
    return 1;
}

static cl_int launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset, const size_t *size,
                     const size_t *local, cl_uint waits, const cl_event *wait_list, cl_event *event) {
    struct slice_kernel *known = opencl_has_unset_events() ? NULL : slice_kernel_of(kernel);
    struct slice_range range;
    struct slice_watch watch = {0};
    cl_device_id device = NULL;
    cl_event own = NULL;
    sliced_here = 0;
    if (known && queue && clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) == CL_SUCCESS
        && slice_range_of(&range, kernel, device, dimensions, offset, size, local)) {
        struct slice_job *job = slice_job_for(known, device, &range, &watch);
        if (job && launch_sliced(job, queue, device, waits, wait_list, event))
            return CL_SUCCESS;
        if (job)
            slice_free_job(job);
    }
    /* Also where the attempt failed: the error is the one of the launch as it is. */
    cl_event *told = event || !watch.code ? event : &own;
    cl_int status = clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, size, local, waits, wait_list, told);
    if (status == CL_SUCCESS && watch.code)
        slice_watch_launch(watch, *told);
    if (own)
        clReleaseEvent(own);
    return status;
}

void *opencl_launch_function(void) {
    return (void *)launch;
}

/* ---- Profiling ----------------------------------------------------------------------------------- */

/* The event of the launch that this thread has just made. */
void opencl_note_sliced(cl_event event) {
    unsigned long serial = sliced_here;
    struct opencl_object *object = serial ? metadata(struct opencl_object, event) : NULL;
    sliced_here = 0;
    if (!object)
        return;
    pthread_mutex_lock(&slice_lock);
    object->sliced = serial;
    struct slice_start *start = slice_start_of(serial);
    if (start)
        start->noted = 1;
    pthread_mutex_unlock(&slice_lock);
}

/* A sliced launch's event is the last part's: it began when the first part did. */
cl_int opencl_event_time(cl_event event, cl_profiling_info name, size_t size, void *value, size_t *size_ret) {
    cl_int status = clGetEventProfilingInfo(event, name, size, value, size_ret);
    const struct opencl_object *object = slice_is_on() ? metadata(struct opencl_object, event) : NULL;
    cl_ulong *time = value;
    if (status != CL_SUCCESS || !time || size < sizeof *time || !object || !object->sliced
        || (name != CL_PROFILING_COMMAND_START && name != CL_PROFILING_COMMAND_SUBMIT))
        return status;
    pthread_mutex_lock(&slice_lock);
    const struct slice_start *start = slice_start_of(object->sliced);
    if (start && start->ns && start->ns < *time)
        *time = start->ns;
    pthread_mutex_unlock(&slice_lock);
    return status;
}

static cl_int event_profiling(cl_event event, cl_profiling_info name, size_t size, void *value, size_t *size_ret) {
    cl_int status;
    if (opencl_remade_time(event, name, size, value, size_ret, &status))
        return status;
    return opencl_event_time(event, name, size, value, size_ret);
}

void *opencl_profiling_function(void) {
    return (void *)event_profiling;
}
