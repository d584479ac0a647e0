/* Times launches of one kernel. Run with several settings of slicing by slicing.py.
 *   slicing matrix SIZE LAUNCHES     a product of square matrices; prints the time of the fastest launch
 *   slicing long WORK-GROUPS LOOPS   one launch of a kernel that takes long; prints its time */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

enum { LOCAL = 8 };

static const char *source =
    "kernel void product(global const float *a, global const float *b, global float *c, int n) {\n"
    "  int x = get_global_id(0), y = get_global_id(1);\n"
    "  float sum = 0;\n"
    "  for (int i = 0; i < n; i++) sum += a[y * n + i] * b[i * n + x];\n"
    "  c[y * n + x] = sum;\n"
    "}\n"
    "kernel void turns(global uint *out, uint loops) {\n"
    "  uint x = get_global_id(0) + get_group_id(0);\n"
    "  for (uint i = 0; i < loops; i++) x = x * 1664525u + 1013904223u;\n"
    "  out[get_global_id(0)] = x;\n"
    "}\n";

static void must(cl_int status, const char *what) {
    if (status == CL_SUCCESS)
        return;
    fprintf(stderr, "%s gave %d\n", what, status);
    exit(1);
}

static double now_ms(void) {
    return (double)now() / 1e6;
}

static cl_mem buffer(cl_context context, size_t bytes) {
    cl_int status;
    unsigned char *content = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        content[i] = (unsigned char)(i % 61);
    cl_mem made = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, bytes, content, &status);
    must(status, "clCreateBuffer");
    free(content);
    return made;
}

static double launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *size, const size_t *local) {
    double start = now_ms();
    must(clEnqueueNDRangeKernel(queue, kernel, dimensions, NULL, size, local, 0, NULL, NULL), "clEnqueueNDRangeKernel");
    must(clFinish(queue), "clFinish");
    return now_ms() - start;
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    cl_platform_id platform;
    cl_device_id device;
    cl_int status;
    must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    must(status, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &status);
    must(status, "clCreateCommandQueue");
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &status);
    must(status, "clCreateProgramWithSource");
    must(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");

    double fastest;
    size_t a = strtoul(arguments[2], NULL, 10), b = strtoul(arguments[3], NULL, 10);
    if (strcmp(arguments[1], "matrix") == 0) {
        cl_kernel kernel = clCreateKernel(program, "product", &status);
        must(status, "clCreateKernel");
        size_t size[2] = {a, a}, local[2] = {LOCAL, LOCAL}, bytes = a * a * sizeof(float);
        cl_mem buffers[3] = {buffer(context, bytes), buffer(context, bytes), buffer(context, bytes)};
        cl_int n = (cl_int)a;
        for (cl_uint i = 0; i < 3; i++)
            must(clSetKernelArg(kernel, i, sizeof buffers[i], &buffers[i]), "clSetKernelArg");
        must(clSetKernelArg(kernel, 3, sizeof n, &n), "clSetKernelArg");
        launch(queue, kernel, 2, size, local);
        fastest = launch(queue, kernel, 2, size, local);
        for (size_t i = 1; i < b; i++) {
            double time = launch(queue, kernel, 2, size, local);
            fastest = time < fastest ? time : fastest;
        }
    } else {
        cl_kernel kernel = clCreateKernel(program, "turns", &status);
        must(status, "clCreateKernel");
        size_t local = LOCAL, size = a * LOCAL;
        cl_uint loops = (cl_uint)b;
        cl_mem out = buffer(context, size * sizeof(cl_uint));
        must(clSetKernelArg(kernel, 0, sizeof out, &out), "clSetKernelArg");
        must(clSetKernelArg(kernel, 1, sizeof loops, &loops), "clSetKernelArg");
        fastest = launch(queue, kernel, 1, &size, &local);
    }
    printf("{\"ms\": %.4f}\n", fastest);
    return 0;
}
