/* Calls that wait for a device, by polling: a thread that sleeps over work of some microseconds is woken too late. */
#include "server.h"
#include <time.h>
#include <unistd.h>

/* How long a call that has waited also waits for the callbacks of what it has waited for. CPU runtimes have run them when such a call
 * returns, and programs rely on it; OpenCL does not promise it, and a callback may wait for the very thread that called. */
#define SETTLING_NS 20000000

void opencl_settle(void) {
    aviary_settle_callbacks(SETTLING_NS);
}

struct timespec opencl_later(struct timespec when, uint64_t ns) {
    uint64_t sum = (uint64_t)when.tv_nsec + ns;
    return (struct timespec){.tv_sec = when.tv_sec + (time_t)(sum / 1000000000), .tv_nsec = (long)(sum % 1000000000)};
}

int opencl_has_passed(struct timespec when) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > when.tv_sec || (now.tv_sec == when.tv_sec && now.tv_nsec >= when.tv_nsec);
}

/* A thread that polls a device which is all of this machine's CPUs takes one away from it. */
static int takes_every_processor(cl_command_queue queue) {
    cl_device_id device;
    cl_device_type type = 0;
    cl_uint units = 0;
    return clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) != CL_SUCCESS
           || clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof type, &type, NULL) != CL_SUCCESS
           || clGetDeviceInfo(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL) != CL_SUCCESS
           || ((type & CL_DEVICE_TYPE_CPU) && units >= (unsigned long)sysconf(_SC_NPROCESSORS_ONLN));
}

static void take_a_breath(void) {
    for (int i = 0; i < 20; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        __asm__ volatile("" ::: "memory");
#endif
    }
}

/* Looks whether the event has come, until that time. */
static void watch(cl_event event, struct timespec until) {
    cl_int status = CL_QUEUED;
    while (clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) == CL_SUCCESS
           && status > CL_COMPLETE && !opencl_has_passed(until))
        /* The device's thread needs the event's lock, too. */
        take_a_breath();
}

/* For how long this call should watch: until when, or not at all. */
static int is_watching(struct timespec *until) {
    uint64_t time = aviary_watch_time();
    if (!time)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, until);
    *until = opencl_later(*until, time);
    return 1;
}

/* The queue is waited for afterwards in any case. */
void opencl_watch_queue(cl_command_queue queue) {
    struct timespec until;
    cl_event fence;
    if (!is_watching(&until) || takes_every_processor(queue)
        || opencl_enqueue_own_marker(queue, &fence) != CL_SUCCESS)
        return;
    if (clFlush(queue) == CL_SUCCESS)
        watch(fence, until);
    clReleaseEvent(fence);
}

static cl_int wait_for_events(cl_uint count, const cl_event *events) {
    struct timespec until;
    int watching = events && is_watching(&until);
    for (cl_uint i = 0; watching && i < count; i++) {
        cl_command_queue queue = NULL;
        /* Events of the application's own have no queue. */
        if (clGetEventInfo(events[i], CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, NULL) == CL_SUCCESS && queue
            && !takes_every_processor(queue) && clFlush(queue) == CL_SUCCESS)
            watch(events[i], until);
    }
    cl_int status = clWaitForEvents(count, events);
    opencl_settle();
    return status;
}

void *opencl_wait_function(void) {
    return (void *)wait_for_events;
}
