/* Buffers that lie in host memory: whatever way the bytes take, commands and the application see them in order. */
#include <pthread.h>
#include "common.h"

static const char *source =
    "__kernel void add(__global uint *p, uint n) { p[get_global_id(0)] += n; }\n"
    "__kernel void slow(__global uint *p, uint rounds) {\n"
    "  uint x = p[get_global_id(0)];\n"
    "  for (uint i = 0; i < rounds; i++) x = x * 1664525u + 1013904223u;\n"
    "  p[get_global_id(0)] = x;\n"
    "}\n";

enum { N = 4096 };
static cl_kernel add, slow;

static void launch(cl_command_queue queue, cl_kernel kernel, cl_mem buffer, cl_uint n, cl_event *event) {
    size_t items = N;
    MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    MUST(clSetKernelArg(kernel, 1, sizeof n, &n));
    MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, event));
}

static cl_uint slowly(cl_uint x, cl_uint rounds) {
    for (cl_uint i = 0; i < rounds; i++)
        x = x * 1664525u + 1013904223u;
    return x;
}

/* Every kind of access after a kernel that takes its time: none may be early. */
static void after_a_kernel(struct device *d, size_t bytes) {
    enum { ROUNDS = 6000 };
    cl_uint *host = calloc(N, sizeof *host), wrong = 0;
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, N * sizeof *host, NULL);
    for (cl_uint turn = 0; turn < 25; turn++) {
        for (cl_uint i = 0; i < N; i++)
            host[i] = i + turn;
        MUST(clEnqueueWriteBuffer(d->queue, buffer, CL_TRUE, 0, N * sizeof *host, host, 0, NULL, NULL));
        launch(d->queue, slow, buffer, ROUNDS, NULL);
        cl_int status;
        cl_uint *seen = host;
        memset(host, 0, N * sizeof *host);
        switch (turn % 5) {
        case 0:
            MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, bytes, host, 0, NULL, NULL));
            break;
        case 1:
            MUST(clEnqueueReadBuffer(d->queue, buffer, CL_FALSE, 0, bytes, host, 0, NULL, NULL));
            MUST(clFinish(d->queue));
            break;
        case 2:
            seen = clEnqueueMapBuffer(d->queue, buffer, CL_TRUE, CL_MAP_READ, 0, bytes, 0, NULL, NULL, &status);
            MUST(status);
            break;
        case 3: {
            cl_event event;
            launch(d->queue, add, buffer, 0, &event);
            MUST(clWaitForEvents(1, &event));
            clReleaseEvent(event);
            MUST(clEnqueueReadBuffer(d->queue, buffer, CL_FALSE, 0, bytes, host, 0, NULL, NULL));
            MUST(clFinish(d->queue));
            break;
        }
        default: {
            /* Overwriting what a running kernel writes: the write comes second. */
            cl_uint zero[N] = {0};
            MUST(clEnqueueWriteBuffer(d->queue, buffer, CL_TRUE, 0, bytes, zero, 0, NULL, NULL));
            MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, bytes, host, 0, NULL, NULL));
        }
        }
        for (cl_uint i = 0; i < bytes / sizeof *host; i += 17)
            wrong += seen[i] != (turn % 5 == 4 ? 0 : slowly(i + turn, ROUNDS));
        if (seen != host)
            MUST(clEnqueueUnmapMemObject(d->queue, buffer, seen, 0, NULL, NULL));
    }
    printf("after a kernel, %zu bytes: wrong %u\n", bytes, wrong);
    clReleaseMemObject(buffer), free(host);
}

/* A buffer that is released while a kernel uses it keeps its memory until the kernel has ended. */
static void released_while_used(struct device *d) {
    cl_uint *host = malloc(N * sizeof *host), wrong = 0;
    for (cl_uint turn = 0; turn < 40; turn++) {
        cl_mem used = buffer_of(d, CL_MEM_READ_WRITE, N * sizeof *host, NULL);
        launch(d->queue, slow, used, 6000, NULL);
        MUST(clFlush(d->queue));
        clReleaseMemObject(used);
        for (cl_uint i = 0; i < N; i++)
            host[i] = i ^ turn;
        cl_mem next = buffer_of(d, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, N * sizeof *host, host);
        memset(host, 0, N * sizeof *host);
        MUST(clEnqueueReadBuffer(d->queue, next, CL_TRUE, 0, N * sizeof *host, host, 0, NULL, NULL));
        for (cl_uint i = 0; i < N; i++)
            wrong += host[i] != (i ^ turn);
        clReleaseMemObject(next);
    }
    printf("released while used: wrong %u\n", wrong);
    free(host);
}

static size_t resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &pages, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return (size_t)resident * 4;
}

static void memory_comes_back(struct device *d) {
    enum { BYTES = 1 << 20, TURNS = 1000 };
    unsigned char *host = malloc(BYTES);
    memset(host, 7, BYTES);
    size_t before = resident_kib();
    for (int turn = 0; turn < TURNS; turn++) {
        cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, BYTES, NULL);
        MUST(clEnqueueWriteBuffer(d->queue, buffer, CL_TRUE, 0, BYTES, host, 0, NULL, NULL));
        clReleaseMemObject(buffer);
    }
    size_t grown = resident_kib() - before;
    printf("1000 buffers of 1 MiB leave less than 100 MiB: %d\n", grown < 100 << 10);
    free(host);
}

static void mappings(struct device *d) {
    cl_int status;
    cl_uint count = 0;
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, N * sizeof(cl_uint), NULL);
    cl_uint *maps[12];
    for (int i = 0; i < 12; i++) {
        maps[i] = clEnqueueMapBuffer(d->queue, buffer, i % 2, CL_MAP_READ | CL_MAP_WRITE, i * 64, 64, 0, NULL, NULL, &status);
        MUST(status);
    }
    MUST(clFinish(d->queue));
    MUST(clGetMemObjectInfo(buffer, CL_MEM_MAP_COUNT, sizeof count, &count, NULL));
    printf("mapped %u times\n", count);
    for (int i = 0; i < 12; i++)
        maps[i][3] = 100 + i;
    for (int i = 0; i < 12; i++) {
        cl_event event = NULL;
        MUST(clEnqueueUnmapMemObject(d->queue, buffer, maps[i], 0, NULL, i % 3 ? NULL : &event));
        if (event) {
            cl_command_type type = 0;
            MUST(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
            MUST(clWaitForEvents(1, &event));
            printf("unmap's event %x\n", type);
            clReleaseEvent(event);
        }
    }
    launch(d->queue, add, buffer, 1, NULL);
    cl_uint *all = clEnqueueMapBuffer(d->queue, buffer, CL_TRUE, CL_MAP_READ, 0, N * sizeof *all, 0, NULL, NULL, &status);
    MUST(status);
    for (int i = 0; i < 12; i++)
        printf("%u ", all[i * 16 + 3]);
    printf("\n");
    MUST(clEnqueueUnmapMemObject(d->queue, buffer, all, 0, NULL, NULL));
    printf("unmapped twice: %d\n", clEnqueueUnmapMemObject(d->queue, buffer, all, 0, NULL, NULL));
    MUST(clFinish(d->queue));
    MUST(clGetMemObjectInfo(buffer, CL_MEM_MAP_COUNT, sizeof count, &count, NULL));
    printf("mapped %u times\n", count);
    clReleaseMemObject(buffer);
}

static void refused(struct device *d) {
    char byte[64] = {0};
    cl_int status;
    cl_mem hidden = buffer_of(d, CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS, 64, NULL);
    cl_mem to_read = buffer_of(d, CL_MEM_READ_WRITE | CL_MEM_HOST_READ_ONLY, 64, NULL);
    MUST(clFinish(d->queue));
    printf("no access %d", clEnqueueReadBuffer(d->queue, hidden, CL_TRUE, 0, 1, byte, 0, NULL, NULL));
    printf(" %d", clEnqueueWriteBuffer(d->queue, to_read, CL_TRUE, 0, 1, byte, 0, NULL, NULL));
    printf(" %d", clEnqueueReadBuffer(d->queue, to_read, CL_TRUE, 0, 64, byte, 0, NULL, NULL));
    printf(" %d", clEnqueueReadBuffer(d->queue, to_read, CL_TRUE, 1, 64, byte, 0, NULL, NULL));
    printf(" %d", clEnqueueReadBuffer(d->queue, to_read, CL_TRUE, (size_t)-8, 16, byte, 0, NULL, NULL));
    printf(" %d", clEnqueueReadBuffer(d->queue, to_read, CL_TRUE, 0, 64, NULL, 0, NULL, NULL));
    clEnqueueMapBuffer(d->queue, to_read, CL_TRUE, CL_MAP_WRITE, 0, 64, 0, NULL, NULL, &status);
    printf(" %d\n", status);
    cl_mem_flags flags = 0;
    void *host = byte;
    cl_mem copied = buffer_of(d, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, 64, byte);
    MUST(clGetMemObjectInfo(copied, CL_MEM_FLAGS, sizeof flags, &flags, NULL));
    MUST(clGetMemObjectInfo(copied, CL_MEM_HOST_PTR, sizeof host, &host, NULL));
    printf("flags %lx host %d\n", (unsigned long)flags, host != NULL);
    clCreateBuffer(d->context, CL_MEM_COPY_HOST_PTR, 64, NULL, &status);
    printf("copy of nothing %d", status);
    clCreateBuffer(d->context, CL_MEM_READ_WRITE, 64, byte, &status);
    printf(" %d", status);
    cl_ulong most = 0;
    MUST(clGetDeviceInfo(d->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL));
    status = CL_INVALID_BUFFER_SIZE;
    if (most < (cl_ulong)24 << 30)
        clCreateBuffer(d->context, CL_MEM_READ_WRITE, most + 1, NULL, &status);
    printf(" %d\n", status);
    clReleaseMemObject(hidden), clReleaseMemObject(to_read), clReleaseMemObject(copied);
}

static void parts(struct device *d) {
    cl_int status;
    cl_uint host[256];
    cl_mem whole = buffer_of(d, CL_MEM_READ_WRITE, N * sizeof(cl_uint), NULL);
    cl_buffer_region region = {4096, 1024};
    cl_mem part = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    MUST(status);
    cl_uint zero = 0;
    MUST(clEnqueueFillBuffer(d->queue, whole, &zero, sizeof zero, 0, N * sizeof zero, 0, NULL, NULL));
    for (cl_uint i = 0; i < 256; i++)
        host[i] = i * 3;
    MUST(clEnqueueWriteBuffer(d->queue, part, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
    launch(d->queue, add, whole, 5, NULL);
    MUST(clEnqueueReadBuffer(d->queue, whole, CL_TRUE, 4096, sizeof host, host, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, part, CL_TRUE, 512, 512, host + 128, 0, NULL, NULL));
    printf("parts %lx\n", digest(host, sizeof host));
    clReleaseMemObject(whole);
    MUST(clEnqueueReadBuffer(d->queue, part, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
    printf("part alone %lx\n", digest(host, sizeof host));
    clReleaseMemObject(part);
}

struct worker {
    struct device *d;
    cl_mem buffer;
    cl_uint first, wrong;
};

/* Threads share one queue; each has its own part of one buffer, and nobody waits for the others. */
static void *work(void *argument) {
    struct worker *w = argument;
    cl_uint host[1024];
    for (cl_uint turn = 0; turn < 60; turn++) {
        for (cl_uint i = 0; i < 1024; i++)
            host[i] = w->first + i + turn;
        MUST(clEnqueueWriteBuffer(w->d->queue, w->buffer, CL_TRUE, w->first * sizeof *host, sizeof host, host, 0, NULL, NULL));
        memset(host, 0, sizeof host);
        MUST(clEnqueueReadBuffer(w->d->queue, w->buffer, turn % 2, w->first * sizeof *host, sizeof host, host, 0, NULL, NULL));
        if (turn % 2 == 0)
            MUST(clFinish(w->d->queue));
        for (cl_uint i = 0; i < 1024; i++)
            w->wrong += host[i] != w->first + i + turn;
    }
    return NULL;
}

static void threads(struct device *d) {
    pthread_t threads[4];
    struct worker workers[4];
    cl_uint wrong = 0;
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, 4 * N, NULL);
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){d, buffer, i * 1024, 0};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        wrong += workers[i].wrong;
    }
    printf("threads: wrong %u\n", wrong);
    clReleaseMemObject(buffer);
}

int main(void) {
    struct device d = open_device(0);
    cl_program program = build(&d, source, "");
    add = kernel_of(program, "add");
    slow = kernel_of(program, "slow");
    after_a_kernel(&d, N * sizeof(cl_uint));
    after_a_kernel(&d, 64);
    released_while_used(&d);
    memory_comes_back(&d);
    mappings(&d);
    refused(&d);
    parts(&d);
    threads(&d);
    clReleaseKernel(add), clReleaseKernel(slow), clReleaseProgram(program);
    close_device(&d);
    return 0;
}
