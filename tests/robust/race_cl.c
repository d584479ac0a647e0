/* Threads that use an object while another thread of the program ends it. The program is wrong, and natively ends in any
 * way; through Aviary each call either uses a live object or is refused, and the API server lives. The program itself may
 * crash: the guest library's part of an object is memory of the program.
 *
 *   race_cl ROUNDS       prints `uses N, refused M` and exits 0; 3 if the API server is lost */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 1 << 14, USERS = 2 };

static cl_command_queue queue;
static _Atomic(cl_mem) buffer;
static _Atomic(cl_event) event;
static atomic_int stop, lost;
static atomic_long uses, refused;

static int is_lost(cl_int error) {
    /* Every function answers this once the API server is gone. */
    return error == CL_DEVICE_NOT_AVAILABLE;
}

static void count(cl_int error) {
    if (is_lost(error))
        lost = stop = 1;
    atomic_fetch_add(error ? &refused : &uses, 1);
}

static void *use(void *number) {
    static char bytes[USERS][SIZE];
    char *mine = bytes[(size_t)number];
    for (unsigned round = 0; !stop; round++) {
        cl_mem used = buffer;
        cl_event waited = event;
        switch (used ? round % 3 : 2) {
        case 0: count(clEnqueueWriteBuffer(queue, used, CL_TRUE, 0, SIZE, mine, 0, NULL, NULL)); break;
        case 1: count(clEnqueueReadBuffer(queue, used, CL_TRUE, 0, SIZE, mine, 0, NULL, NULL)); break;
        default:
            if (waited)
                count(clWaitForEvents(1, &waited));
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 200;
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return 2;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    queue = clCreateCommandQueue(context, device, 0, &error);
    pthread_t threads[USERS];
    for (size_t i = 0; i < USERS; i++)
        pthread_create(&threads[i], NULL, use, (void *)i);
    for (int round = 0; round < rounds && !stop; round++) {
        cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, SIZE, NULL, &error);
        cl_event marker = NULL;
        if (!made || is_lost(error) || is_lost(clEnqueueMarkerWithWaitList(queue, 0, NULL, &marker)))
            break;
        buffer = made;
        event = marker;
        for (volatile int pause = 0; pause < round % 50 * 400; pause++)
            ;
        /* Both are still in the hands of the other threads. */
        clReleaseMemObject(made);
        clReleaseEvent(marker);
    }
    stop = 1;
    for (size_t i = 0; i < USERS; i++)
        pthread_join(threads[i], NULL);
    if (is_lost(clFinish(queue)))
        lost = 1;
    printf("uses %ld, refused %ld\n", uses, refused);
    return lost ? 3 : 0;
}
