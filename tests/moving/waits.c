/* Threads that wait for what the main thread does at the end, which has work done meanwhile.
 * waits   prints `ready` once all wait, `looked VALUE` for each line of its standard input, and at its end what each wait
 *         answered. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define WAITERS 3

static cl_event set, failed;
static _Atomic int begun;

struct waiter {
    pthread_t thread;
    cl_uint count;
    cl_event events[2];
    cl_int answer;
};

static void *wait_for_events(void *argument) {
    struct waiter *waiter = argument;
    begun++;
    waiter->answer = clWaitForEvents(waiter->count, waiter->events);
    return NULL;
}

static cl_int status_of(cl_event event) {
    cl_int status = -1000;
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    return status;
}

int main(void) {
    cl_platform_id platform;
    cl_device_id device;
    cl_int error, looks = 0, value = 0;
    clGetPlatformIDs(1, &platform, NULL);
    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL);
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    cl_command_queue queue = clCreateCommandQueueWithProperties(context, device, NULL, &error);
    cl_mem memory = clCreateBuffer(context, 0, sizeof looks, NULL, &error);
    set = clCreateUserEvent(context, &error);
    failed = clCreateUserEvent(context, &error);
    clRetainEvent(set);
    struct waiter waiters[WAITERS] = {{.count = 1, .events = {set}}, {.count = 1, .events = {failed}}, {.count = 2, .events = {set, failed}}};
    for (int i = 0; i < WAITERS; i++)
        pthread_create(&waiters[i].thread, NULL, wait_for_events, &waiters[i]);
    while (begun < WAITERS)
        usleep(1000);
    printf("ready\n");
    fflush(stdout);
    for (char line[8]; fgets(line, sizeof line, stdin); looks++) {
        clEnqueueFillBuffer(queue, memory, &looks, sizeof looks, 0, sizeof looks, 0, NULL, NULL);
        clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, sizeof value, &value, 0, NULL, NULL);
        printf("looked %d, events %d %d\n", value, status_of(set), status_of(failed));
        fflush(stdout);
    }
    clSetUserEventStatus(set, CL_COMPLETE);
    clSetUserEventStatus(failed, -5);
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(waiters[i].thread, NULL);
        printf("waited %d\n", waiters[i].answer);
    }
    cl_uint references = 0;
    clGetEventInfo(set, CL_EVENT_REFERENCE_COUNT, sizeof references, &references, NULL);
    printf("events %d %d, %u references, again %d\n", status_of(set), status_of(failed), references, clSetUserEventStatus(set, CL_COMPLETE));
}
