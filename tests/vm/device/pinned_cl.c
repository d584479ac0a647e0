/* In a VM: one large write, and one large read, of a buffer. Says "attached", waits for the file GO, says "written",
 * waits for the file END, compares.
 *   pinned_cl BYTES GO END */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(cl_int error, const char *what) {
    if (error == CL_SUCCESS)
        return;
    fprintf(stderr, "pinned_cl: %s: error %d\n", what, error);
    exit(1);
}

static void say_and_wait(const char *what, const char *file) {
    puts(what);
    fflush(stdout);
    while (access(file, F_OK))
        usleep(20000);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t bytes = strtoull(argv[1], NULL, 10);
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    check(error, "context");
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    check(error, "queue");
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    check(error, "buffer");
    unsigned char *there = malloc(bytes), *back = malloc(bytes);
    if (!there || !back)
        return 1;
    for (size_t i = 0; i < bytes; i++)
        there[i] = (unsigned char)(i * 7 + i / 251);
    memset(back, 0, bytes);
    say_and_wait("attached", argv[2]);
    check(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, bytes, there, 0, NULL, NULL), "write");
    check(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, bytes, back, 0, NULL, NULL), "read");
    say_and_wait("written", argv[3]);
    puts(memcmp(there, back, bytes) ? "different" : "equal");
    return 0;
}
