/* A limit of a device of so many bytes as the argument says holds in every context that has the device or parts of it. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 1 << 20, MOST = 1024, PARTS = 64 };

static cl_mem pieces[MOST];
static int count;

/* As many pieces as there are. */
static int take(cl_context context) {
    cl_int status = CL_SUCCESS;
    int before = count;
    while (count < MOST && (pieces[count] = clCreateBuffer(context, CL_MEM_READ_WRITE, PIECE, NULL, &status)))
        count++;
    return status == CL_MEM_OBJECT_ALLOCATION_FAILURE ? count - before : -1;
}

int main(int argc, char **argv) {
    int fits = argc > 1 ? (int)(strtoull(argv[1], NULL, 10) / PIECE) : 0;
    cl_platform_id platform;
    cl_device_id device, parts[PARTS];
    cl_uint part_count = 0;
    cl_device_partition_property each[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_int status;
    if (!fits || clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return 2;
    cl_context whole = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    if (clCreateSubDevices(device, each, PARTS, parts, &part_count) || !part_count) {
        parts[0] = device;
        part_count = 1;
    }
    cl_context of_parts = clCreateContext(NULL, part_count, parts, NULL, NULL, &status);
    cl_context last = clCreateContext(NULL, 1, &parts[part_count - 1], NULL, NULL, &status);
    int first = take(whole);
    if (first != fits || take(of_parts) || take(last))
        return printf("%d of %d fit\n", first, fits);
    for (int i = 0; i < 3; i++)
        clReleaseMemObject(pieces[--count]);
    int again = take(of_parts);
    if (again != 3 || take(whole))
        return printf("%d of 3 fit\n", again);
    puts("ok");
    return 0;
}
