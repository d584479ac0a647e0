/* Run with a limit of device memory, in bytes: sees that it has so much, takes all of it, not one byte more, gives it back. */
#include "common.h"

static int failures;

static void expect(const char *what, cl_int status, cl_int wanted) {
    printf("%s: %d\n", what, status);
    failures += status != wanted;
}

int main(int count, char **arguments) {
    size_t limit = count > 1 ? strtoul(arguments[1], NULL, 10) : 0;
    struct device d = open_device(0);
    cl_int status;
    cl_ulong there[2] = {0};
    for (int i = 0; i < 2; i++)
        MUST(clGetDeviceInfo(d.device, i ? CL_DEVICE_MAX_MEM_ALLOC_SIZE : CL_DEVICE_GLOBAL_MEM_SIZE, sizeof *there, &there[i], NULL));
    printf("the device says it has %lu, %lu at once\n", there[0], there[1]);
    failures += there[0] != limit || there[1] != limit;
    for (int round = 0; round < 3; round++) {
        cl_mem most = clCreateBuffer(d.context, CL_MEM_READ_WRITE, limit - 1, NULL, &status);
        expect("all but a byte", status, CL_SUCCESS);
        clCreateBuffer(d.context, CL_MEM_READ_WRITE, 2, NULL, &status);
        expect("two bytes more", status, CL_MEM_OBJECT_ALLOCATION_FAILURE);
        cl_mem last = clCreateBuffer(d.context, CL_MEM_READ_WRITE, 1, NULL, &status);
        expect("the last byte", status, CL_SUCCESS);
        /* A call that the vendor refuses costs nothing. */
        clCreateBuffer(d.context, CL_MEM_READ_WRITE, 0, NULL, &status);
        expect("no bytes", status, CL_INVALID_BUFFER_SIZE);
        expect("release", clReleaseMemObject(last), CL_SUCCESS);
        cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
        cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 64, .image_height = 64};
        clCreateImage(d.context, CL_MEM_READ_WRITE, &format, &desc, NULL, &status);
        expect("an image", status, CL_MEM_OBJECT_ALLOCATION_FAILURE);
        expect("release", clReleaseMemObject(most), CL_SUCCESS);
        cl_mem image = clCreateImage(d.context, CL_MEM_READ_WRITE, &format, &desc, NULL, &status);
        expect("an image", status, CL_SUCCESS);
        expect("release", clReleaseMemObject(image), CL_SUCCESS);
    }
    close_device(&d);
    return failures != 0;
}
