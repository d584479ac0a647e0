/* This API's part of tests/pointers: objects to call its functions with, and a question that its API server answers. */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>

static cl_context pointers_context;

static void addresses_of_the_api(void) {}

static int setup(void) {
    /* Its arguments stay unset, so that no launch is executed: sizes are not pointers, and a launch of absurd sizes, which
     * is the tenant's own work, crashes PoCL's threads. */
    static const char *const source = "kernel void k(global int *to, int value) { to[get_global_id(0)] = value; }";
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS
        || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS)
        return 0;
    cl_context context = pointers_context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, NULL, &error);
    cl_program program = clCreateProgramWithSource(context, 1, (const char **)&source, NULL, &error);
    if (!queue || !buffer || !program || clBuildProgram(program, 1, &device, "", NULL, NULL) != CL_SUCCESS)
        return 0;
    cl_kernel kernel = clCreateKernel(program, "k", &error);
    if (!kernel)
        return 0;
    cl_event event = clCreateUserEvent(context, &error);
    if (!event || clSetUserEventStatus(event, CL_COMPLETE) != CL_SUCCESS)
        return 0;
    known("cl_platform_id", (uint64_t)platform);
    known("cl_device_id", (uint64_t)device);
    known("cl_context", (uint64_t)context);
    known("cl_command_queue", (uint64_t)queue);
    known("cl_mem", (uint64_t)buffer);
    known("cl_program", (uint64_t)program);
    known("cl_kernel", (uint64_t)kernel);
    known("cl_event", (uint64_t)event);
    return 1;
}

static void each_thread(void) {}

/* Not remembered, and answered by the runtime. */
static int alive(void) {
    cl_uint references = 0;
    return clGetContextInfo(pointers_context, CL_CONTEXT_REFERENCE_COUNT, sizeof references, &references, NULL)
           != CL_DEVICE_NOT_AVAILABLE;
}
