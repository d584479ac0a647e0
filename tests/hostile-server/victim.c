// Another tenant's program: adds vectors and checks the sums until SIGTERM. Prints "rounds N wrong N".
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 4096 };
static volatile sig_atomic_t over;
static void end(int signal) {
    (void)signal;
    over = 1;
}

int main(void) {
    signal(SIGTERM, end);
    const char *source = "kernel void add(global const int *a, global const int *b, global int *c) {"
                         " size_t i = get_global_id(0); c[i] = a[i] + b[i]; }";
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 1;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    if (clBuildProgram(program, 1, &device, "", NULL, NULL)) return 1;
    cl_kernel kernel = clCreateKernel(program, "add", &error);
    static int a[N], b[N], c[N];
    cl_mem buffers[3];
    for (int i = 0; i < 3; i++) {
        buffers[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof a, NULL, &error);
        clSetKernelArg(kernel, i, sizeof buffers[i], &buffers[i]);
    }
    long rounds = 0, wrong = 0;
    for (; !over; rounds++) {
        for (int i = 0; i < N; i++) a[i] = i * (int)rounds, b[i] = 7 - i;
        size_t size = N;
        error = clEnqueueWriteBuffer(queue, buffers[0], CL_TRUE, 0, sizeof a, a, 0, NULL, NULL);
        error |= clEnqueueWriteBuffer(queue, buffers[1], CL_TRUE, 0, sizeof b, b, 0, NULL, NULL);
        error |= clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL);
        error |= clEnqueueReadBuffer(queue, buffers[2], CL_TRUE, 0, sizeof c, c, 0, NULL, NULL);
        for (int i = 0; i < N; i++) wrong += error != 0 || c[i] != a[i] + b[i];
    }
    printf("rounds %ld wrong %ld\n", rounds, wrong);
    return 0;
}
