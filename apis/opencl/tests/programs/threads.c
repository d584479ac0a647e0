/* Many threads at once, each with its own queue, and one queue for all. */
#include "common.h"
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 40, N = 4096 };
static struct device device;
static cl_kernel kernels[THREADS];

static void *work(void *argument) {
    int id = (int)(intptr_t)argument;
    cl_int status;
    cl_command_queue own = clCreateCommandQueue(device.context, device.device, 0, &status);
    MUST(status);
    cl_kernel kernel = kernels[id];
    int *data = malloc(N * sizeof *data);
    for (int i = 0; i < N; i++)
        data[i] = id;
    cl_mem buffer = buffer_of(&device, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, N * sizeof *data, data);
    size_t global = N;
    for (int round = 0; round < ROUNDS; round++) {
        cl_command_queue queue = round % 2 ? own : device.queue;
        MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
        MUST(clSetKernelArg(kernel, 1, sizeof round, &round));
        MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
        MUST(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, N * sizeof *data, data, 0, NULL, NULL));
    }
    long expected = id;
    for (int round = 0; round < ROUNDS; round++)
        expected += round;
    intptr_t wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += data[i] != expected;
    clReleaseMemObject(buffer), clReleaseCommandQueue(own), free(data);
    return (void *)wrong;
}

int main(void) {
    device = open_device(0);
    cl_program program = build(&device, "kernel void advance(global int *p, int by) { p[get_global_id(0)] += by; }", "");
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        kernels[i] = kernel_of(program, "advance");
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        printf("thread %d: %ld wrong\n", i, (long)(intptr_t)wrong);
    }
    for (int i = 0; i < THREADS; i++)
        clReleaseKernel(kernels[i]);
    clReleaseProgram(program);
    close_device(&device);
    return 0;
}
