/* Computes on the first OpenCL device until its standard input ends, and prints a line for each result: its number and the
 * driver's version, which is asked for each time. */
#include <CL/cl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(code) \
    do { \
        cl_int status_ = (code); \
        if (status_ != CL_SUCCESS) { \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #code, status_); \
            exit(1); \
        } \
    } while (0)

enum { COUNT = 1000 };

int main(void) {
    const char *text = "kernel void add(global int *a, int b) { a[get_global_id(0)] += b; }";
    cl_platform_id platform;
    cl_device_id device;
    cl_int status;
    int values[COUNT] = {0};
    CHECK(clGetPlatformIDs(1, &platform, NULL));
    CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    CHECK(status);
    cl_command_queue queue = clCreateCommandQueueWithProperties(context, device, NULL, &status);
    CHECK(status);
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &status);
    CHECK(status);
    CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
    cl_kernel kernel = clCreateKernel(program, "add", &status);
    CHECK(status);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof values, values, &status);
    CHECK(status);
    for (int turn = 1;; turn++) {
        char version[256] = "";
        size_t size = COUNT;
        int one = 1;
        CHECK(clGetDeviceInfo(device, CL_DRIVER_VERSION, sizeof version, version, NULL));
        CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
        CHECK(clSetKernelArg(kernel, 1, sizeof one, &one));
        CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL));
        CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
        for (int i = 0; i < COUNT; i++) {
            if (values[i] != turn) {
                fprintf(stderr, "turn %d: value %d is %d\n", turn, i, values[i]);
                return 1;
            }
        }
        printf("%d %s\n", turn, version);
        fflush(stdout);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (poll(&input, 1, 10) > 0) {
            break;
        }
    }
    return 0;
}
