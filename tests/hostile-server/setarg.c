// Sets an argument of a kernel again and again: nothing of it may stay in the API server.
//   setarg WARM COUNT     prints "warm" after WARM calls and waits for a line, then makes COUNT and waits for another
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

static const char *source = "kernel void k(global int *a, int b) { a[0] = b; }";

static void set(cl_kernel kernel, long count) {
    for (long i = 0; i < count; i++) {
        cl_int value = (cl_int)i;
        if (clSetKernelArg(kernel, 1, sizeof value, &value)) exit(2);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 1;
    cl_platform_id platform;
    cl_device_id device;
    cl_int error = clGetPlatformIDs(1, &platform, NULL);
    if (!error) error = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL);
    if (error) return 1;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    if (error || clBuildProgram(program, 1, &device, "", NULL, NULL)) return 1;
    cl_kernel kernel = clCreateKernel(program, "k", &error);
    if (error) return 1;
    char line[8];
    set(kernel, atol(argv[1]));
    // A synchronous call: all before it has been made.
    cl_uint references;
    clGetKernelInfo(kernel, CL_KERNEL_REFERENCE_COUNT, sizeof references, &references, NULL);
    puts("warm");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    set(kernel, atol(argv[2]));
    clGetKernelInfo(kernel, CL_KERNEL_REFERENCE_COUNT, sizeof references, &references, NULL);
    puts("done");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) == NULL;
}
