/* Code that every test program here starts with. Programs print what they observe; a run through Aviary
 * must print the same as a native one. */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct device {
    cl_platform_id platform;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
};

/* The status of an operation, as a line of the program's output. */
#define SHOW(what) printf("%s: %d\n", #what, (int)(what))
#define MUST(what) must((what), #what, __FILE__, __LINE__)

static inline void must(cl_int status, const char *what, const char *file, int line) {
    if (status == CL_SUCCESS)
        return;
    printf("%s:%d: %s gave %d\n", file, line, what, status);
    exit(1);
}

static inline struct device open_device(cl_command_queue_properties properties) {
    struct device d = {0};
    cl_int status;
    MUST(clGetPlatformIDs(1, &d.platform, NULL));
    MUST(clGetDeviceIDs(d.platform, CL_DEVICE_TYPE_ALL, 1, &d.device, NULL));
    cl_context_properties list[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)d.platform, 0};
    d.context = clCreateContext(list, 1, &d.device, NULL, NULL, &status);
    MUST(status);
    d.queue = clCreateCommandQueue(d.context, d.device, properties, &status);
    MUST(status);
    return d;
}

static inline void close_device(struct device *d) {
    MUST(clReleaseCommandQueue(d->queue));
    MUST(clReleaseContext(d->context));
}

static inline cl_program build(struct device *d, const char *source, const char *options) {
    cl_int status;
    cl_program program = clCreateProgramWithSource(d->context, 1, &source, NULL, &status);
    MUST(status);
    MUST(clBuildProgram(program, 1, &d->device, options, NULL, NULL));
    return program;
}

static inline cl_kernel kernel_of(cl_program program, const char *name) {
    cl_int status;
    cl_kernel kernel = clCreateKernel(program, name, &status);
    MUST(status);
    return kernel;
}

static inline cl_mem buffer_of(struct device *d, cl_mem_flags flags, size_t size, void *host) {
    cl_int status;
    cl_mem buffer = clCreateBuffer(d->context, flags, size, host, &status);
    MUST(status);
    return buffer;
}

/* A digest of some bytes, so that outputs stay short. */
static inline unsigned long digest(const void *data, size_t size) {
    const unsigned char *bytes = data;
    unsigned long hash = 14695981039346656037ul;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 1099511628211ul;
    return hash;
}
