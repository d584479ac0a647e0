/* Callbacks: of events, builds, contexts, destroyed objects; calls from inside a callback. */
#include "common.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int seen;

static void note(int what) {
    pthread_mutex_lock(&lock);
    seen |= what;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int wait_for(int what) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&lock);
    int late = 0;
    while ((seen & what) != what && !late)
        late = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
    return !late;
}

static unsigned char target[65536];
static cl_int inner = -1;
/* Callbacks of different events may come in any order: main prints what they saw. */
static char complete_saw[128], user_saw[128];

static void CL_CALLBACK on_complete(cl_event event, cl_int status, void *data) {
    /* The data of the read that this event stands for is there, and calls work. */
    cl_command_type type = 0;
    inner = clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL);
    snprintf(complete_saw, sizeof complete_saw, "complete: status %d, data %d, type %x, target %d", status, *(int *)data, type, target[777]);
    note(1);
}

static void CL_CALLBACK on_user(cl_event event, cl_int status, void *data) {
    (void)event;
    snprintf(user_saw, sizeof user_saw, "user event: status %d, data %ld", status, (long)(intptr_t)data);
    note(2);
}

static void CL_CALLBACK on_built(cl_program program, void *data) {
    cl_uint references = 0;
    clGetProgramInfo(program, CL_PROGRAM_REFERENCE_COUNT, sizeof references, &references, NULL);
    printf("built: data %s, known %d\n", (const char *)data, references > 0);
    note(4);
}

static void CL_CALLBACK on_destroyed(cl_mem memory, void *data) {
    (void)memory;
    printf("destroyed: %s\n", (const char *)data);
    note(((const char *)data)[0] == 'a' ? 8 : 16);
}

static void CL_CALLBACK on_context_error(const char *text, const void *info, size_t size, void *data) {
    (void)text, (void)info, (void)size, (void)data;
}

int main(void) {
    struct device d = {0};
    cl_int status;
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(clGetPlatformIDs(1, &d.platform, NULL));
    MUST(clGetDeviceIDs(d.platform, CL_DEVICE_TYPE_ALL, 1, &d.device, NULL));
    d.context = clCreateContext(NULL, 1, &d.device, on_context_error, &d, &status);
    MUST(status);
    d.queue = clCreateCommandQueueWithProperties(d.context, d.device, NULL, &status);
    MUST(status);

    const char *source = "kernel void fill(global uchar *p) { p[get_global_id(0)] = 200; }";
    cl_program program = clCreateProgramWithSource(d.context, 1, &source, NULL, &status);
    MUST(status);
    MUST(clBuildProgram(program, 0, NULL, NULL, on_built, "the data"));
    printf("build waited for: %d\n", wait_for(4));

    cl_kernel fill = kernel_of(program, "fill");
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, sizeof target, NULL);
    MUST(clSetKernelArg(fill, 0, sizeof buffer, &buffer));
    cl_event gate = clCreateUserEvent(d.context, &status), read;
    MUST(status);
    int number = 4711;
    MUST(clSetEventCallback(gate, CL_COMPLETE, on_user, (void *)(intptr_t)815));
    size_t global = sizeof target;
    MUST(clEnqueueNDRangeKernel(d.queue, fill, 1, NULL, &global, NULL, 1, &gate, NULL));
    MUST(clEnqueueReadBuffer(d.queue, buffer, CL_FALSE, 0, sizeof target, target, 0, NULL, &read));
    MUST(clSetEventCallback(read, CL_COMPLETE, on_complete, &number));
    MUST(clFlush(d.queue));
    printf("nothing yet: %d\n", seen & 3);
    MUST(clSetUserEventStatus(gate, CL_COMPLETE));
    printf("user event waited for: %d\n", wait_for(2));
    printf("read waited for: %d\n", wait_for(1));
    printf("%s\n%s\n", user_saw, complete_saw);
    printf("call inside the callback: %d\n", inner);

    MUST(clSetMemObjectDestructorCallback(buffer, on_destroyed, "b (registered first)"));
    MUST(clSetMemObjectDestructorCallback(buffer, on_destroyed, "a (registered second)"));
    clReleaseEvent(gate), clReleaseEvent(read);
    clReleaseKernel(fill), clReleaseProgram(program);
    MUST(clFinish(d.queue));
    MUST(clReleaseMemObject(buffer));
    printf("destruction waited for: %d\n", wait_for(8 | 16));
    SHOW(clSetEventCallback(NULL, CL_COMPLETE, on_user, NULL));
    close_device(&d);
    return 0;
}
