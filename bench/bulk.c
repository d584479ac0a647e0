// Bulk data and launches through OpenCL. Run natively and through Aviary.
//
//   bulk [SECONDS]           time for each measurement; prints one JSON object
//   bulk SECONDS vendor      transfers that the vendor's library makes: those of an out-of-order queue
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

#define MIB ((size_t)1 << 20)
#define MAX_SAMPLES 20000

static cl_command_queue queue;
static cl_mem buffer;
static cl_kernel kernel;
static char *host;

static void check(cl_int error, const char *what) {
    if (error == CL_SUCCESS) return;
    fprintf(stderr, "bulk: %s: error %d\n", what, error);
    exit(1);
}

static void write_buffer(size_t n) { check(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, n, host, 0, NULL, NULL), "write"); }
static void read_buffer(size_t n) { check(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, n, host, 0, NULL, NULL), "read"); }

static void map_buffer(size_t n) {
    cl_int error;
    char *p = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, n, 0, NULL, NULL, &error);
    check(error, "map");
    p[0]++;
    p[n - 1]++;
    check(clEnqueueUnmapMemObject(queue, buffer, p, 0, NULL, NULL), "unmap");
    check(clFinish(queue), "finish");
}

static void launch(size_t items) {
    check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL), "launch");
    check(clFinish(queue), "finish");
}

// Median nanoseconds of one call.
static double median(void (*call)(size_t), size_t n, double seconds) {
    static uint64_t times[MAX_SAMPLES];
    size_t count = 0;
    for (int i = 0; i < 5; i++) call(n);
    uint64_t end = now() + (uint64_t)(seconds * 1e9);
    while (count < MAX_SAMPLES && (now() < end || count < 5)) {
        uint64_t start = now();
        call(n);
        times[count++] = now() - start;
    }
    qsort(times, count, sizeof *times, by_value);
    return (double)times[count / 2];
}

static cl_device_id first_device(void) {
    cl_platform_id platform;
    cl_device_id device;
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    return device;
}

static void prepare(size_t bytes, cl_command_queue_properties how) {
    cl_int error;
    cl_device_id device = first_device();
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    check(error, "context");
    queue = clCreateCommandQueue(context, device, how, &error);
    check(error, "queue");
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    check(error, "buffer");
    const char *source = "__kernel void one(__global int *p) { p[get_global_id(0)] += 1; }";
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    check(error, "program");
    check(clBuildProgram(program, 1, &device, "", NULL, NULL), "build");
    kernel = clCreateKernel(program, "one", &error);
    check(error, "kernel");
    check(clSetKernelArg(kernel, 0, sizeof buffer, &buffer), "argument");
    host = malloc(bytes);
    if (!host) exit(1);
    memset(host, 7, bytes);
}

// Every byte must make the way there and back.
static void verify(size_t bytes) {
    for (size_t i = 0; i < bytes; i++) host[i] = (char)(i * 31 + (i >> 12));
    write_buffer(bytes);
    memset(host, 0, bytes);
    read_buffer(bytes);
    for (size_t i = 0; i < bytes; i++)
        if (host[i] != (char)(i * 31 + (i >> 12))) {
            fprintf(stderr, "bulk: byte %zu came back wrong\n", i);
            exit(1);
        }
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0.5;
    int vendor = argc > 2 && !strcmp(argv[2], "vendor");
    prepare(64 * MIB, vendor ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0);
    verify(64 * MIB);
    if (vendor) {
        printf("{\"write_1MiB_ns\": %.0f, ", median(write_buffer, MIB, seconds));
        printf("\"read_1MiB_ns\": %.0f, ", median(read_buffer, MIB, seconds));
        printf("\"write_64MiB_ns\": %.0f, ", median(write_buffer, 64 * MIB, seconds));
        printf("\"read_64MiB_ns\": %.0f}\n", median(read_buffer, 64 * MIB, seconds));
        return 0;
    }
    printf("{\"write_4KiB_ns\": %.0f, ", median(write_buffer, 4096, seconds));
    printf("\"read_4KiB_ns\": %.0f, ", median(read_buffer, 4096, seconds));
    printf("\"write_1MiB_ns\": %.0f, ", median(write_buffer, MIB, seconds));
    printf("\"read_1MiB_ns\": %.0f, ", median(read_buffer, MIB, seconds));
    printf("\"write_64MiB_ns\": %.0f, ", median(write_buffer, 64 * MIB, seconds));
    printf("\"read_64MiB_ns\": %.0f, ", median(read_buffer, 64 * MIB, seconds));
    printf("\"map_1MiB_ns\": %.0f, ", median(map_buffer, MIB, seconds));
    printf("\"launch_finish_ns\": %.0f}\n", median(launch, 64, seconds));
}
