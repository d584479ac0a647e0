// Blocking writes to, and reads from, a buffer of an OpenCL device, by size. Run in a guest, with AVIARY_PIN=0 (every
// buffer pinned) and with a huge AVIARY_PIN (every buffer copied).
//
//   transfer [SMALLEST LARGEST]     bytes; prints {"write_MBps": {"SIZE": ...}, "read_MBps": {...}}
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 4096

static cl_command_queue queue;
static cl_mem buffer;
static unsigned char *host;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void check(cl_int error, const char *what) {
    if (error == CL_SUCCESS) return;
    fprintf(stderr, "transfer: %s: error %d\n", what, error);
    exit(1);
}

static void write_buffer(size_t n) { check(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, n, host, 0, NULL, NULL), "write"); }
static void read_buffer(size_t n) { check(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, n, host, 0, NULL, NULL), "read"); }

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Median over some 64 MiB, and at least seven.
static double rate(void (*transfer)(size_t), size_t n) {
    static uint64_t times[MOST];
    size_t count = ((size_t)64 << 20) / n + 7;
    if (count > MOST) count = MOST;
    transfer(n);
    for (size_t i = 0; i < count; i++) {
        uint64_t start = now();
        transfer(n);
        times[i] = now() - start;
    }
    qsort(times, count, sizeof *times, by_value);
    return (double)n * 1e3 / (double)times[count / 2];
}

// What arrives is what was sent, whichever way it takes.
static void verify(size_t n) {
    for (size_t i = 0; i < n; i++) host[i] = (unsigned char)(i * 7 + i / 251);
    write_buffer(n);
    memset(host, 0, n);
    read_buffer(n);
    for (size_t i = 0; i < n; i++)
        if (host[i] != (unsigned char)(i * 7 + i / 251)) {
            fprintf(stderr, "transfer: byte %zu of %zu differs\n", i, n);
            exit(1);
        }
}

static void table(const char *name, void (*transfer)(size_t), size_t smallest, size_t largest) {
    printf("\"%s\": {", name);
    for (size_t n = smallest; n <= largest; n *= 2) {
        printf("%s\"%zu\": %.1f", n > smallest ? ", " : "", n, rate(transfer, n));
        fflush(stdout);
    }
    printf("}");
}

int main(int argc, char **argv) {
    size_t smallest = argc > 2 ? strtoull(argv[1], NULL, 0) : (size_t)32 << 10;
    size_t largest = argc > 2 ? strtoull(argv[2], NULL, 0) : (size_t)256 << 20;
    if (!smallest || smallest > largest) {
        fprintf(stderr, "usage: transfer [SMALLEST LARGEST]\n");
        return 2;
    }
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    check(error, "context");
    queue = clCreateCommandQueue(context, device, 0, &error);
    check(error, "queue");
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, largest, NULL, &error);
    check(error, "buffer");
    // Not at the beginning of a page, like most buffers of programs.
    host = (unsigned char *)malloc(largest + 64) + 16;
    verify(smallest + 1 < largest ? smallest + 1 : smallest);
    verify(largest);
    printf("{");
    table("write_MBps", write_buffer, smallest, largest);
    printf(", ");
    table("read_MBps", read_buffer, smallest, largest);
    printf("}\n");
    return 0;
}
