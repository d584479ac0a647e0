/* The same for OpenCL: a kernel, transfers and a mapping, checked. Statuses as in worker.c, but without 4. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT 20000

static cl_device_id device;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static cl_int error;

static void expect(int right, const char *what) {
    if (right)
        return;
    cl_int first = error;
    char name[256];
    error = clGetDeviceInfo(device, CL_DEVICE_PROFILE, sizeof name, name, NULL);
    cl_bool available = CL_TRUE;
    cl_int other = clGetDeviceInfo(device, CL_DEVICE_AVAILABLE, sizeof available, &available, NULL);
    if (error == CL_DEVICE_NOT_AVAILABLE || other == CL_DEVICE_NOT_AVAILABLE)
        exit(3);
    /* Queries may be answered from what is known: an object cannot be created any more. */
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    if (!context && error == CL_DEVICE_NOT_AVAILABLE)
        exit(3);
    printf("wrong: %s (%d, now %d)\n", what, first, error);
    fflush(stdout);
    exit(1);
}
#define EXPECT(condition) expect((condition) != 0, #condition)

static const char *source =
    "kernel void scramble(global uint *values, uint by) { size_t i = get_global_id(0); values[i] = values[i] * by + i; }";

int main(int argc, char **argv) {
    cl_platform_id platform;
    static cl_uint values[COUNT], back[COUNT];
    if (argc < 3)
        return 64;
    double end = now() + atof(argv[2]) / 1e3;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS
        || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS)
        return 2;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    EXPECT(context && error == CL_SUCCESS);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    EXPECT(queue && error == CL_SUCCESS);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    EXPECT(program && error == CL_SUCCESS);
    EXPECT(clBuildProgram(program, 1, &device, "", NULL, NULL) == CL_SUCCESS);
    cl_kernel kernel = clCreateKernel(program, "scramble", &error);
    EXPECT(kernel && error == CL_SUCCESS);
    cl_uint by = (cl_uint)strtoul(argv[1], NULL, 10) | 1;
    do {
        cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof values, NULL, &error);
        EXPECT(buffer && error == CL_SUCCESS);
        for (cl_uint i = 0; i < COUNT; i++)
            values[i] = i * 2654435761u + by;
        size_t size = COUNT;
        EXPECT(clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 0, sizeof values, values, 0, NULL, NULL) == CL_SUCCESS);
        EXPECT(clSetKernelArg(kernel, 0, sizeof buffer, &buffer) == CL_SUCCESS);
        EXPECT(clSetKernelArg(kernel, 1, sizeof by, &by) == CL_SUCCESS);
        EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL) == CL_SUCCESS);
        EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof back, back, 0, NULL, NULL) == CL_SUCCESS);
        int right = 1;
        for (cl_uint i = 0; i < COUNT; i++)
            right &= back[i] == values[i] * by + i;
        EXPECT(right);
        cl_uint *mapped = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, sizeof back, 0, NULL, NULL, &error);
        EXPECT(mapped && error == CL_SUCCESS);
        EXPECT(memcmp(mapped, back, sizeof back) == 0);
        EXPECT(clEnqueueUnmapMemObject(queue, buffer, mapped, 0, NULL, NULL) == CL_SUCCESS);
        EXPECT(clFinish(queue) == CL_SUCCESS);
        EXPECT(clReleaseMemObject(buffer) == CL_SUCCESS);
    } while (now() < end);
    return 0;
}
