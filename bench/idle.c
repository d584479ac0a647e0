// One session: makes a few calls, says "ready", then does what standard input says.
// Without -DOPENCL it uses testapi, with it OpenCL (a context, a queue and a buffer).
//
//   measure SECONDS    synchronous calls for so long; prints how many per second in the better tenth of the time
//   (end of input)     the session ends
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "timing.h"

static void check(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "idle: %s failed\n", what);
    exit(1);
}

#ifdef OPENCL
#define CL_TARGET_OPENCL_VERSION 200
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

static cl_command_queue queue;

static void attach(void) {
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    char name[256], data[4096] = {1};
    check(clGetPlatformIDs(1, &platform, NULL) == CL_SUCCESS, "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) == CL_SUCCESS, "clGetDeviceIDs");
    check(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL) == CL_SUCCESS, "clGetDeviceInfo");
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    check(error == CL_SUCCESS, "clCreateContext");
    queue = clCreateCommandQueue(context, device, 0, &error);
    check(error == CL_SUCCESS, "clCreateCommandQueue");
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof data, NULL, &error);
    check(error == CL_SUCCESS, "clCreateBuffer");
    check(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof data, data, 0, NULL, NULL) == CL_SUCCESS, "a write");
}

static void call(void) {
    check(clFinish(queue) == CL_SUCCESS, "clFinish");
}
#else
#include "testapi.h"

static void attach(void) {
    ta_device device;
    ta_buffer buffer;
    char data[4096] = {1};
    check(ta_device_open("idle", &device) == TA_OK, "ta_device_open");
    check(ta_buffer_create(device, sizeof data, &buffer) == TA_OK, "ta_buffer_create");
    check(ta_buffer_write(buffer, 0, sizeof data, data) == TA_OK, "ta_buffer_write");
    check(ta_buffer_fill(buffer, 7) == TA_OK, "ta_buffer_fill");
    check(ta_add(1, 2) == 3, "ta_add");
}

static void call(void) {
    check(ta_noop() == TA_OK, "ta_noop");
}
#endif

#define BATCH 20
#define BATCHES 1000000

// Calls per second in the better batches: what the machine's other programs do disturbs the rest.
static double measure(double seconds) {
    static double took[BATCHES];
    double start = (double)now() / 1e9, from = start;
    long batches = 0;
    while (from - start < seconds && batches < BATCHES) {
        for (int i = 0; i < BATCH; i++) call();
        double to = (double)now() / 1e9;
        took[batches++] = to - from;
        from = to;
    }
    qsort(took, (size_t)batches, sizeof *took, by_real_value);
    return BATCH / took[batches / 10];
}

int main(void) {
    double seconds;
    attach();
    printf("ready\n");
    fflush(stdout);
    while (scanf(" measure %lf", &seconds) == 1) {
        printf("%.1f\n", measure(seconds));
        fflush(stdout);
    }
    return 0;
}
