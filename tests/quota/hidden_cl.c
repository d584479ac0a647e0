/* hidden_cl BYTES: run under a limit of device_memory. Memory that was released but is still in use counts: a
 * buffer lives as long as its sub-buffer, an image as long as what it was made from. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

static void expect(int right, const char *what, cl_int error) {
    if (right)
        return;
    printf("wrong: %s (%d)\n", what, error);
    exit(1);
}

int main(int argc, char **argv) {
    size_t limit = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, most = limit / 10 * 6;
    cl_platform_id platform;
    cl_device_id device;
    cl_int error = clGetPlatformIDs(1, &platform, NULL);
    expect(error == CL_SUCCESS, "a platform", error);
    expect(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) == CL_SUCCESS, "a device", error);
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    expect(context != NULL, "a context", error);
    for (int round = 0; round < 3; round++) {
        cl_mem whole = clCreateBuffer(context, CL_MEM_READ_WRITE, most, NULL, &error);
        expect(whole != NULL, "a buffer", error);
        cl_buffer_region region = {0, 4096};
        cl_mem part = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
        expect(part != NULL, "a sub-buffer", error);
        expect(clReleaseMemObject(whole) == CL_SUCCESS, "its release", error);
        cl_mem more = clCreateBuffer(context, CL_MEM_READ_WRITE, most, NULL, &error);
        expect(!more && error == CL_MEM_OBJECT_ALLOCATION_FAILURE, "the sub-buffer keeps the whole", error);
        expect(clReleaseMemObject(part) == CL_SUCCESS, "the release of the sub-buffer", error);
        more = clCreateBuffer(context, CL_MEM_READ_WRITE, limit, NULL, &error);
        expect(more != NULL, "all of it again", error);
        expect(clReleaseMemObject(more) == CL_SUCCESS, "the last release", error);
    }
    clReleaseContext(context);
    puts("ok");
    return 0;
}
