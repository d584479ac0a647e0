/* An OpenCL program that says what it has.
     compute MEBIBYTES [FIFO]   takes buffers of 1 MiB and uses them, until it has so many or is refused; then adds vectors and checks.
                                With FIFO it waits in between until somebody writes there, and checks what the first buffer holds.
   Prints "held N", and "refused NAME" if it was; ends with status 0 if the sums are right. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 65536
#define COUNT 1024

static const char *source = "__kernel void add(__global const int *a, __global int *b) { size_t i = get_global_id(0); b[i] += a[i]; }";
static cl_mem held[MOST];

static int sums(cl_context context, cl_device_id device, cl_command_queue queue) {
    int a[COUNT], b[COUNT], wrong = 0;
    size_t size = COUNT;
    for (int i = 0; i < COUNT; i++) {
        a[i] = i;
        b[i] = 7 * i;
    }
    cl_mem x = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof a, a, NULL);
    cl_mem y = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof b, b, NULL);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, NULL);
    if (!x || !y || clBuildProgram(program, 1, &device, "", NULL, NULL) != CL_SUCCESS)
        return 1;
    cl_kernel kernel = clCreateKernel(program, "add", NULL);
    if (clSetKernelArg(kernel, 0, sizeof x, &x) || clSetKernelArg(kernel, 1, sizeof y, &y) ||
        clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL) ||
        clEnqueueReadBuffer(queue, y, CL_TRUE, 0, sizeof b, b, 0, NULL, NULL))
        return 1;
    for (int i = 0; i < COUNT; i++)
        wrong += b[i] != 8 * i;
    return wrong != 0;
}

/* Waits without a call, and says whether the buffer holds what it was given. */
static int kept(cl_command_queue queue, cl_mem buffer, const char *fifo) {
    int given[COUNT], found[COUNT] = {0};
    for (int i = 0; i < COUNT; i++)
        given[i] = 3 * i + 1;
    if (clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof given, given, 0, NULL, NULL) || clFinish(queue))
        return 0;
    FILE *file = fopen(fifo, "r");
    if (!file || fgetc(file) == EOF)
        return 0;
    fclose(file);
    return clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof found, found, 0, NULL, NULL) == CL_SUCCESS && memcmp(given, found, sizeof found) == 0;
}

int main(int count, char **words) {
    int most = count > 1 ? atoi(words[1]) : 0, got = 0;
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return 2;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    if (error)
        return 2;
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    while (got < most && got < MOST && (held[got] = clCreateBuffer(context, 0, 1 << 20, NULL, &error)))
        got++;
    printf("held %d\n", got);
    if (got < most)
        printf("refused %d\n", error);
    fflush(stdout);
    if (count > 2 && got > 0 && !kept(queue, held[0], words[2])) {
        printf("the buffer is another\n");
        return 3;
    }
    for (int i = 0; i < got; i++)
        clReleaseMemObject(held[i]);
    int wrong = sums(context, device, queue);
    printf("sums %s\n", wrong ? "wrong" : "right");
    return wrong;
}
