/* Two processes of one program, of which one waits in clFinish until the other's kernel has run: correct, and natively over at once.
 *   waits ROUNDS */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>

static const char *const source = "kernel void add(global uint *sum) { atomic_add(sum, 1); }\n";
static int to_other[2], from_other[2];
static cl_event allowed;

static void tell(int pipe) {
    if (write(pipe, "x", 1) != 1)
        exit(1);
}

static void hear(int pipe) {
    char byte;
    if (read(pipe, &byte, 1) != 1)
        exit(1);
}

static void run(struct device *d, cl_kernel kernel, cl_uint events, const cl_event *list) {
    const size_t one = 1;
    MUST(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &one, NULL, events, list, NULL));
}

static cl_kernel kernel_with_sum(struct device *d, cl_mem *sum) {
    cl_int status;
    *sum = clCreateBuffer(d->context, CL_MEM_COPY_HOST_PTR, sizeof(cl_uint), &(cl_uint){0}, &status);
    MUST(status);
    cl_kernel kernel = kernel_of(build(d, source, ""), "add");
    MUST(clSetKernelArg(kernel, 0, sizeof *sum, sum));
    return kernel;
}

static void *allow(void *unused) {
    hear(from_other[0]);
    MUST(clSetUserEventStatus(allowed, CL_COMPLETE));
    return unused;
}

static void other(int rounds) {
    cl_mem sum;
    struct device d = open_device(0);
    cl_kernel kernel = kernel_with_sum(&d, &sum);
    for (int round = 0; round < rounds; round++) {
        hear(to_other[0]);
        run(&d, kernel, 0, NULL);
        MUST(clFinish(d.queue));
        tell(from_other[1]);
    }
    exit(0);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 3, status;
    cl_uint had = 0;
    cl_mem sum;
    if (pipe(to_other) || pipe(from_other))
        return 1;
    /* Before anything of OpenCL's is there. */
    pid_t child = fork();
    if (child == 0)
        other(rounds);
    struct device d = open_device(0);
    cl_kernel kernel = kernel_with_sum(&d, &sum);
    for (int round = 0; round < rounds; round++) {
        pthread_t thread;
        allowed = clCreateUserEvent(d.context, &status);
        MUST(status);
        run(&d, kernel, 0, NULL);
        run(&d, kernel, 1, &allowed);
        MUST(clFlush(d.queue));
        pthread_create(&thread, NULL, allow, NULL);
        tell(to_other[1]);
        MUST(clFinish(d.queue));
        pthread_join(thread, NULL);
        MUST(clReleaseEvent(allowed));
    }
    MUST(clEnqueueReadBuffer(d.queue, sum, CL_TRUE, 0, sizeof had, &had, 0, NULL, NULL));
    waitpid(child, &status, 0);
    printf("%u, %d\n", had, status);
    return had != 2u * (cl_uint)rounds || status != 0;
}
