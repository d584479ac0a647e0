// Uses two libraries of one process: prints its own process and testapi's API server, then calls both until one is lost (or
// the time is over), and says how often each of them answered since `lost` of the other.
//   both SECONDS
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "testapi.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    double end = now() + (argc > 1 ? atof(argv[1]) : 1);
    ta_device device = NULL;
    cl_platform_id platform;
    cl_device_id found;
    cl_int status;
    if (ta_device_open("both", &device) != TA_OK) return 2;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &found, NULL)) return 2;
    cl_context context = clCreateContext(NULL, 1, &found, NULL, NULL, &status);
    cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, 1 << 20, NULL, &status);
    cl_command_queue queue = clCreateCommandQueue(context, found, 0, &status);
    if (status) return 2;
    printf("holding %d %d\n", (int)getpid(), ta_process());
    fflush(stdout);
    int first = 0, second = 0, alone = 0;
    do {
        char byte = 1;
        first = first || ta_noop() != TA_OK;
        second = second || clEnqueueWriteBuffer(queue, memory, CL_TRUE, 0, 1, &byte, 0, NULL, NULL) != CL_SUCCESS;
        alone += first != second;
        usleep(1000);
    } while (now() < end && !(first && second));
    printf("end %d %d %d\n", first, second, alone);
    return first || second ? 3 : 0;
}
