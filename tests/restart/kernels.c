/* As rounds.c on OpenCL: a kernel changes what the rounds before it have left in a buffer. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdint.h>
#include <stdio.h>

#define COUNT ((size_t)64 << 10)

static const char *source =
    "__kernel void advance(__global uint *values, uint number) {\n"
    "    size_t i = get_global_id(0);\n"
    "    values[i] = values[i] * 1664525u + 1013904223u + number * (uint)i;\n"
    "}\n";

int main(void) {
    static uint32_t values[COUNT];
    cl_platform_id platform;
    cl_device_id device;
    cl_int status;
    char line[16];
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS)
        return 2;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    if (status != CL_SUCCESS)
        return 2;
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &status);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof values, NULL, &status);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &status);
    if (status != CL_SUCCESS || clBuildProgram(program, 1, &device, "", NULL, NULL) != CL_SUCCESS)
        return 2;
    cl_kernel kernel = clCreateKernel(program, "advance", &status);
    if (status != CL_SUCCESS || clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL) != CL_SUCCESS)
        return 2;
    for (cl_uint round = 1; fgets(line, sizeof line, stdin) != NULL; round++) {
        uint64_t sum = 0;
        size_t count = COUNT;
        for (int i = 0; i < 20 && status == CL_SUCCESS; i++) {
            status = clSetKernelArg(kernel, 0, sizeof buffer, &buffer) | clSetKernelArg(kernel, 1, sizeof round, &round);
            status |= clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &count, NULL, 0, NULL, NULL);
        }
        status |= clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL);
        for (size_t at = 0; at < COUNT; at++)
            sum = sum * 31 + values[at];
        printf("round %u: %d %016llx\n", round, status, (unsigned long long)sum);
        fflush(stdout);
        if (status != CL_SUCCESS)
            return 4;
    }
    return clReleaseKernel(kernel) | clReleaseProgram(program) | clReleaseMemObject(buffer) | clReleaseCommandQueue(queue) |
           clReleaseContext(context);
}
