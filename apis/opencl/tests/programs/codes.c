/* Mistakes that no message could carry, or that the vendor would not be asked about: each has its own code. */
#include "common.h"

#define TELL(call) (status = 12345, (void)(call), printf("%s: %d\n", #call, status))

int main(void) {
    struct device d = open_device(0);
    static char bytes[4096];
    const size_t zero[3] = {0}, far[3] = {1ul << 30, 1ul << 30, 1ul << 30}, square[3] = {16, 16, 1};
    const size_t huge = (size_t)1 << 50;
    size_t pitch;
    cl_int status;
    cl_event event;
    cl_image_format format = {CL_RGBA, CL_UNORM_INT8};
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 16};
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, 4096, NULL);
    cl_mem image = clCreateImage(d.context, CL_MEM_READ_WRITE, &format, &desc, NULL, &status);
    cl_program program = build(&d, "kernel void k(global int *p) { p[0] = 1; }", "");
    MUST(clEnqueueMarkerWithWaitList(d.queue, 0, NULL, &event));

    SHOW(clGetDeviceIDs(d.platform, CL_DEVICE_TYPE_ALL, 0, NULL, NULL));
    SHOW(clGetDeviceIDs(d.platform, CL_DEVICE_TYPE_ALL, 1, NULL, NULL));
    /* User data for a function that is not given. */
    TELL(clCreateContext(NULL, 1, &d.device, NULL, bytes, &status));
    TELL(clCreateContextFromType(NULL, CL_DEVICE_TYPE_ALL, NULL, bytes, &status));
    SHOW(clBuildProgram(program, 1, &d.device, NULL, NULL, bytes));
    TELL(clLinkProgram(d.context, 0, NULL, NULL, 1, NULL, NULL, NULL, &status));
    /* Sizes that no device has. */
    TELL(clCreateBuffer(d.context, 0, (size_t)-1, NULL, &status));
    TELL(clCreateBuffer(d.context, CL_MEM_COPY_HOST_PTR, huge, bytes, &status));
    TELL(clCreateBuffer(d.context, CL_MEM_USE_HOST_PTR, huge, bytes, &status));
    SHOW(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 0, huge, bytes, 0, NULL, NULL));
    SHOW(clEnqueueReadBuffer(d.queue, buffer, CL_FALSE, 0, (size_t)-1, bytes, 0, NULL, NULL));
    SHOW(clEnqueueWriteBuffer(d.queue, buffer, CL_TRUE, 0, huge, bytes, 0, NULL, NULL));
    SHOW(clEnqueueWriteBuffer(d.queue, buffer, CL_FALSE, 0, (size_t)-1, bytes, 0, NULL, NULL));
    SHOW(clEnqueueReadBufferRect(d.queue, buffer, CL_TRUE, zero, zero, far, 0, 0, 0, 0, bytes, 0, NULL, NULL));
    SHOW(clEnqueueWriteBufferRect(d.queue, buffer, CL_TRUE, zero, zero, far, 0, 0, 0, 0, bytes, 0, NULL, NULL));
    SHOW(clEnqueueReadImage(d.queue, image, CL_TRUE, zero, far, 0, 0, bytes, 0, NULL, NULL));
    SHOW(clEnqueueFillBuffer(d.queue, buffer, bytes, huge, 0, 16, 0, NULL, NULL));
    TELL(clEnqueueMapImage(d.queue, image, CL_TRUE, CL_MAP_READ, zero, square, NULL, &pitch, 0, NULL, NULL, &status));
    SHOW(clSVMAlloc(d.context, CL_MEM_READ_WRITE, huge, 0) == NULL);
    SHOW(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 0, 16, bytes, 0, NULL, NULL));

    MUST(clReleaseEvent(event));
    MUST(clReleaseProgram(program));
    MUST(clReleaseMemObject(image));
    MUST(clReleaseMemObject(buffer));
    close_device(&d);
    return 0;
}
