/* Mistakes: every call says what a native run says, and the next call works. */
#include "common.h"

int main(void) {
    struct device d = open_device(0);
    cl_int status;
    cl_uint number;
    size_t size;
    char text[8];
    cl_program program = build(&d, "kernel void k(global int *p, int v, local int *s) { p[0] = v; }", "");
    cl_kernel k = kernel_of(program, "k");
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, 4096, NULL);
    cl_int value = 1;
    unsigned char bytes[64];

    SHOW(clGetPlatformIDs(0, NULL, NULL));
    SHOW(clGetPlatformIDs(0, NULL, &number));
    SHOW(clGetDeviceIDs(d.platform, 0, 1, &d.device, NULL));
    SHOW(clGetDeviceIDs(d.platform, CL_DEVICE_TYPE_ACCELERATOR, 1, &d.device, &number));
    SHOW(clGetDeviceInfo(d.device, 0xdead, 8, text, NULL));
    SHOW(clGetDeviceInfo(d.device, CL_DEVICE_NAME, 1, text, NULL));
    SHOW(clGetDeviceInfo(d.device, CL_DEVICE_NAME, 0, NULL, &size));
    SHOW(clGetPlatformInfo(d.platform, CL_PLATFORM_NAME, 2, text, NULL));
    /* Objects that are none. */
    SHOW(clRetainMemObject(NULL));
    SHOW(clReleaseEvent(NULL));
    SHOW(clFinish(NULL));
    SHOW(clFlush(NULL));
    SHOW(clSetKernelArg(NULL, 0, 4, &value));
    SHOW(clEnqueueNDRangeKernel(NULL, k, 1, NULL, &size, NULL, 0, NULL, NULL));
    /* Sizes, flags, offsets. */
    clCreateBuffer(d.context, CL_MEM_READ_WRITE, 0, NULL, &status);
    SHOW(status);
    clCreateBuffer(d.context, CL_MEM_READ_WRITE | CL_MEM_READ_ONLY, 16, NULL, &status);
    SHOW(status);
    clCreateBuffer(d.context, CL_MEM_USE_HOST_PTR, 16, NULL, &status);
    SHOW(status);
    clCreateBuffer(d.context, CL_MEM_READ_WRITE, 16, bytes, &status);
    SHOW(status);
    clCreateBuffer(d.context, CL_MEM_READ_WRITE, (size_t)1 << 50, NULL, &status);
    SHOW(status);
    printf("no error asked for: %d\n", clCreateBuffer(d.context, CL_MEM_READ_WRITE, 0, NULL, NULL) == NULL);
    SHOW(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 4090, 64, bytes, 0, NULL, NULL));
    SHOW(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 0, 64, NULL, 0, NULL, NULL));
    SHOW(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 0, 64, bytes, 1, NULL, NULL));
    SHOW(clEnqueueFillBuffer(d.queue, buffer, bytes, 3, 0, 12, 0, NULL, NULL));
    SHOW(clEnqueueCopyBuffer(d.queue, buffer, buffer, 0, 16, 64, 0, NULL, NULL));
    cl_buffer_region region = {4000, 1000};
    clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    SHOW(status);
    /* Kernels and their arguments. */
    clCreateKernel(program, "nothing", &status);
    SHOW(status);
    SHOW(clSetKernelArg(k, 7, sizeof value, &value));
    SHOW(clSetKernelArg(k, 1, 2, &value));
    SHOW(clSetKernelArg(k, 0, 4, &value));
    SHOW(clSetKernelArg(k, 0, sizeof buffer, &buffer));
    size_t global = 64, local = 7;
    SHOW(clEnqueueNDRangeKernel(d.queue, k, 1, NULL, &global, NULL, 0, NULL, NULL));
    SHOW(clSetKernelArg(k, 1, sizeof value, &value));
    SHOW(clSetKernelArg(k, 2, 64, NULL));
    SHOW(clEnqueueNDRangeKernel(d.queue, k, 4, NULL, &global, NULL, 0, NULL, NULL));
    SHOW(clEnqueueNDRangeKernel(d.queue, k, 0, NULL, &global, NULL, 0, NULL, NULL));
    local = 1 << 20;
    SHOW(clEnqueueNDRangeKernel(d.queue, k, 1, NULL, &global, &local, 0, NULL, NULL));
    SHOW(clEnqueueNDRangeKernel(d.queue, k, 1, NULL, &global, NULL, 0, NULL, NULL));
    SHOW(clFinish(d.queue));
    /* Events. */
    cl_event user = clCreateUserEvent(d.context, &status);
    SHOW(clSetUserEventStatus(user, 5));
    SHOW(clSetUserEventStatus(user, CL_COMPLETE));
    SHOW(clSetUserEventStatus(user, CL_COMPLETE));
    SHOW(clWaitForEvents(0, NULL));
    SHOW(clWaitForEvents(1, &user));
    cl_ulong time;
    SHOW(clGetEventProfilingInfo(user, CL_PROFILING_COMMAND_END, sizeof time, &time, NULL));
    /* Contexts and queues. */
    cl_context_properties unknown[] = {0x7777, 1, 0};
    clCreateContext(unknown, 1, &d.device, NULL, NULL, &status);
    SHOW(status);
    clCreateContext(NULL, 0, NULL, NULL, NULL, &status);
    SHOW(status);
    clCreateCommandQueue(d.context, d.device, (cl_command_queue_properties)1 << 40, &status);
    SHOW(status);
    SHOW(clGetMemObjectInfo(buffer, CL_MEM_SIZE, 2, &size, NULL));
    SHOW(clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof size, &size, NULL));
    printf("size %zu\n", size);
    SHOW(clReleaseEvent(user));
    SHOW(clReleaseMemObject(buffer));
    SHOW(clReleaseKernel(k));
    SHOW(clReleaseProgram(program));
    close_device(&d);
    return 0;
}
