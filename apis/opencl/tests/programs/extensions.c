/* Functions by name, command buffers, sub-devices, property lists that come back. */
#include "common.h"

#define FUNCTION(name) name##_fn name = (name##_fn)clGetExtensionFunctionAddressForPlatform(d.platform, #name)

static void command_buffer(struct device d) {
    FUNCTION(clCreateCommandBufferKHR);
    FUNCTION(clFinalizeCommandBufferKHR);
    FUNCTION(clReleaseCommandBufferKHR);
    FUNCTION(clEnqueueCommandBufferKHR);
    FUNCTION(clCommandNDRangeKernelKHR);
    FUNCTION(clCommandFillBufferKHR);
    FUNCTION(clGetCommandBufferInfoKHR);
    printf("command buffers: %d\n", clCreateCommandBufferKHR != NULL);
    if (!clCreateCommandBufferKHR)
        return;
    cl_int status;
    cl_program program = build(&d, "kernel void inc(global int *p) { p[get_global_id(0)]++; }", "");
    cl_kernel inc = kernel_of(program, "inc");
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, 1024, NULL);
    MUST(clSetKernelArg(inc, 0, sizeof buffer, &buffer));
    cl_command_buffer_khr commands = clCreateCommandBufferKHR(1, &d.queue, NULL, &status);
    MUST(status);
    cl_sync_point_khr filled, done;
    int pattern = 40;
    size_t global = 256;
    status = clCommandFillBufferKHR(commands, NULL, buffer, &pattern, 4, 0, 1024, 0, NULL, &filled, NULL);
    printf("fill: %d\n", status);
    if (status != CL_SUCCESS)
        return;
    MUST(clCommandNDRangeKernelKHR(commands, NULL, NULL, inc, 1, NULL, &global, NULL, 1, &filled, &done, NULL));
    MUST(clCommandNDRangeKernelKHR(commands, NULL, NULL, inc, 1, NULL, &global, NULL, 1, &done, NULL, NULL));
    MUST(clFinalizeCommandBufferKHR(commands));
    cl_command_queue queue = NULL;
    cl_uint state = 99;
    MUST(clGetCommandBufferInfoKHR(commands, CL_COMMAND_BUFFER_QUEUES_KHR, sizeof queue, &queue, NULL));
    MUST(clGetCommandBufferInfoKHR(commands, CL_COMMAND_BUFFER_STATE_KHR, sizeof state, &state, NULL));
    printf("queue is the same: %d, state %u\n", queue == d.queue, state);
    for (int i = 0; i < 3; i++) {
        MUST(clEnqueueCommandBufferKHR(0, NULL, commands, 0, NULL, NULL));
        MUST(clFinish(d.queue));
    }
    int result[256];
    MUST(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 0, sizeof result, result, 0, NULL, NULL));
    printf("result %d %d\n", result[0], result[255]);
    MUST(clReleaseCommandBufferKHR(commands));
    clReleaseMemObject(buffer), clReleaseKernel(inc), clReleaseProgram(program);
}

static void sub_devices(struct device d) {
    cl_device_partition_property by_count[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    cl_device_partition_property equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id parts[8], parent = NULL;
    cl_uint count = 0, units = 0;
    cl_int status = clCreateSubDevices(d.device, by_count, 8, parts, &count);
    printf("by counts: %d, %u\n", status, count);
    for (cl_uint i = 0; status == CL_SUCCESS && i < count; i++)
        MUST(clReleaseDevice(parts[i]));
    status = clCreateSubDevices(d.device, equally, 8, parts, &count);
    printf("equally: %d, %u\n", status, count);
    if (status != CL_SUCCESS)
        return;
    MUST(clGetDeviceInfo(parts[0], CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL));
    MUST(clGetDeviceInfo(parts[0], CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL));
    printf("parent is the same: %d, units %u\n", parent == d.device, units);
    cl_context context = clCreateContext(NULL, 1, parts, NULL, NULL, &status);
    MUST(status);
    MUST(clReleaseContext(context));
    for (cl_uint i = 0; i < count; i++)
        MUST(clReleaseDevice(parts[i]));
}

int main(void) {
    struct device d = open_device(0);
    command_buffer(d);
    sub_devices(d);
    cl_context_properties properties[8] = {0};
    size_t size = 0;
    cl_device_id device = NULL;
    cl_platform_id platform = NULL;
    MUST(clGetContextInfo(d.context, CL_CONTEXT_PROPERTIES, sizeof properties, properties, &size));
    printf("properties: %zu bytes, platform is the same: %d\n", size, properties[1] == (cl_context_properties)d.platform);
    MUST(clGetContextInfo(d.context, CL_CONTEXT_DEVICES, sizeof device, &device, &size));
    printf("devices: %zu bytes, the same: %d\n", size, device == d.device);
    MUST(clGetDeviceInfo(d.device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL));
    printf("platform is the same: %d\n", platform == d.platform);
    printf("nothing of that name: %d\n", clGetExtensionFunctionAddressForPlatform(d.platform, "clNothingOfThatName") == NULL);
    close_device(&d);
    return 0;
}
