/* Looks for a secret in new OpenCL memory that it never wrote, then fills as much with it and ends without
 * releasing anything. Prints how many words of the secret it found. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFERS 24
#define BYTES ((size_t)4 << 20)
#define SECRET 0x5ec2e75ec2e75ec2ull

int main(void) {
    cl_platform_id platform;
    cl_device_id device;
    cl_mem buffers[BUFFERS];
    uint64_t *words = malloc(BYTES);
    size_t found = 0;
    if (!words || clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return 2;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, NULL);
    if (!queue)
        return 2;
    for (int i = 0; i < BUFFERS; i++) {
        /* Both kinds: in memory that is shared with the application, and the vendor's own. */
        cl_mem_flags flags = CL_MEM_READ_WRITE | (i % 2 ? CL_MEM_ALLOC_HOST_PTR : 0);
        buffers[i] = clCreateBuffer(context, flags, i % 3 ? BYTES : BYTES / 1024, NULL, NULL);
        size_t bytes = i % 3 ? BYTES : BYTES / 1024;
        if (!buffers[i] || clEnqueueReadBuffer(queue, buffers[i], CL_TRUE, 0, bytes, words, 0, NULL, NULL))
            return 2;
        for (size_t at = 0; at < bytes / 8; at++)
            found += words[at] == SECRET;
    }
    for (size_t at = 0; at < BYTES / 8; at++)
        words[at] = SECRET;
    for (int i = 0; i < BUFFERS; i++)
        if (clEnqueueWriteBuffer(queue, buffers[i], CL_TRUE, 0, i % 3 ? BYTES : BYTES / 1024, words, 0, NULL, NULL))
            return 2;
    printf("found %zu\n", found);
    return 0;
}
