/* A tenant that keeps an OpenCL device busy; the counterpart of testapi's accelerate.
 *   occupy calibrate TURNS LAUNCHES                   prints the time of one launch among so many
 *   occupy CLIENT TURNS NS BATCH PAUSE_US BEGIN END LOG
 * BATCH launches of a kernel of TURNS turns, then a wait for all of them, then a pause, again and again from BEGIN to END
 * (seconds of CLOCK_MONOTONIC). LOG gets a record per batch: the last BATCH * NS nanoseconds before its end, and CLIENT. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "timing.h"

enum { WORK_ITEMS = 1024, LOCAL = 16, RECORDS = 1 << 20 };

static const char *source =
    "kernel void turns(global uint *out, uint turns) {\n"
    "  uint x = get_global_id(0);\n"
    "  for (uint i = 0; i < turns; i++) x = x * 1664525u + 1013904223u;\n"
    "  out[get_global_id(0)] = x;\n"
    "}\n";

struct record {
    uint64_t begin, end, client;
};
static cl_command_queue queue;
static cl_kernel kernel;

static void must(cl_int status, const char *what) {
    if (status == CL_SUCCESS)
        return;
    fprintf(stderr, "occupy: %s gave %d\n", what, status);
    exit(1);
}

static void prepare(cl_uint turns) {
    cl_platform_id platform;
    cl_device_id device;
    cl_int status;
    must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    must(status, "clCreateContext");
    queue = clCreateCommandQueue(context, device, 0, &status);
    must(status, "clCreateCommandQueue");
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &status);
    must(status, "clCreateProgramWithSource");
    must(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");
    kernel = clCreateKernel(program, "turns", &status);
    must(status, "clCreateKernel");
    cl_mem out = clCreateBuffer(context, CL_MEM_READ_WRITE, WORK_ITEMS * sizeof(cl_uint), NULL, &status);
    must(status, "clCreateBuffer");
    must(clSetKernelArg(kernel, 0, sizeof out, &out), "clSetKernelArg");
    must(clSetKernelArg(kernel, 1, sizeof turns, &turns), "clSetKernelArg");
}

static void launch(long count) {
    const size_t size = WORK_ITEMS, local = LOCAL;
    for (long i = 0; i < count; i++)
        must(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, &local, 0, NULL, NULL), "clEnqueueNDRangeKernel");
    must(clFinish(queue), "clFinish");
}

static int calibrate(long launches) {
    launch(2);
    uint64_t start = now();
    launch(launches);
    printf("{\"ns\": %.1f}\n", (double)(now() - start) / (double)launches);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "calibrate") == 0) {
        prepare((cl_uint)strtoul(argv[2], NULL, 10));
        return calibrate(atol(argv[3]));
    }
    if (argc != 9) {
        fprintf(stderr, "usage: occupy CLIENT TURNS NS BATCH PAUSE_US BEGIN END LOG\n");
        return 2;
    }
    uint64_t client = strtoull(argv[1], NULL, 10), nanoseconds = strtoull(argv[3], NULL, 10);
    long batch = atol(argv[4]), pause = atol(argv[5]), count = 0;
    uint64_t begin = (uint64_t)(atof(argv[6]) * 1e9), end = (uint64_t)(atof(argv[7]) * 1e9);
    struct record *records = malloc(RECORDS * sizeof *records);
    FILE *log = fopen(argv[8], "w");
    if (!records || !log)
        return perror("occupy"), 1;
    /* One-time work happens before the time begins. */
    prepare((cl_uint)strtoul(argv[2], NULL, 10));
    launch(1);
    while (now() < begin)
        usleep(500);
    while (now() < end && count < RECORDS) {
        launch(batch);
        uint64_t done = now();
        records[count++] = (struct record){done - (uint64_t)batch * nanoseconds, done, client};
        if (pause)
            usleep((useconds_t)pause);
    }
    if (fwrite(records, sizeof *records, (size_t)count, log) != (size_t)count || fclose(log))
        return perror("occupy"), 1;
    return 0;
}
