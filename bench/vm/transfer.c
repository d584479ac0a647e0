// Blocking writes to, and reads from, a buffer of an OpenCL device, by size. Run in a guest, with AVIARY_PIN=0 (every
// buffer pinned) and with a huge AVIARY_PIN (every buffer copied).
//
//   transfer [--vendor] [--scattered] [SMALLEST LARGEST]
//                     bytes; prints {"write_MBps": {"SIZE": ...}, "read_MBps": {...}}
//   transfer [--vendor] [--scattered] --once BYTES
//                     one write, with a line of input before it and after it; prints "ready", then
//                     {"requests": ..., "bytes_pinned": ..., "kicks": ...} of that write
//
// --scattered: memory whose neighbouring pages are nowhere near each other in the guest's physical memory. Otherwise it
// lies in huge pages if the guest's kernel has some left.
// --vendor: transfers that the vendor's library makes, as for a device with memory of its own: those of an out-of-order
// queue. Otherwise buffers of devices that compute in host memory are shared, and the guest copies by itself.
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "session.h"

#include <sys/mman.h>

#include "../timing.h"

#define PAGE 4096

#define MOST 4096

static cl_command_queue queue;
static cl_mem buffer;
static unsigned char *host;

static void check(cl_int error, const char *what) {
    if (error == CL_SUCCESS) return;
    fprintf(stderr, "transfer: %s: error %d\n", what, error);
    exit(1);
}

static void write_buffer(size_t n) { check(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, n, host, 0, NULL, NULL), "write"); }
static void read_buffer(size_t n) { check(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, n, host, 0, NULL, NULL), "read"); }

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

// The received bytes are the sent ones on every path.
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

// Free memory is given out in order, so pages that are touched in another order than that of their addresses lie apart.
static void scatter(unsigned char *memory, size_t n) {
    size_t pages = n / PAGE, stride = pages / 2 | 1;
    if (madvise(memory, n, MADV_NOHUGEPAGE)) perror("transfer: MADV_NOHUGEPAGE");
    // Any stride that shares no factor with the number of pages reaches all of them.
    for (;; stride += 2) {
        size_t a = pages, b = stride, rest;
        while ((rest = a % b)) a = b, b = rest;
        if (b == 1) break;
    }
    for (size_t i = 0, page = 0; i < pages; i++, page = (page + stride) % pages) memory[page * PAGE] = 1;
}

static unsigned char *allocate(size_t n, int scattered) {
    size_t whole = (n + 64 + PAGE - 1) / PAGE * PAGE;
    unsigned char *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("transfer: memory");
        exit(1);
    }
    if (scattered) scatter(memory, whole);
    // Not at the beginning of a page, like most buffers of programs.
    return memory + 16;
}

static void once(size_t n) {
    memset(host, 3, n);
    // The session's first transfer may bring memory of its own.
    write_buffer(n < PAGE ? n : PAGE);
    printf("ready\n");
    fflush(stdout);
    wait_for_line();
    struct aviary_counters before = session_counters();
    write_buffer(n);
    struct aviary_counters after = session_counters();
    printf("{\"requests\": %llu, \"bytes_pinned\": %llu, \"kicks\": %llu}\n", after.requests - before.requests,
           after.bytes_pinned - before.bytes_pinned, after.kicks - before.kicks);
    fflush(stdout);
    wait_for_line();
}

int main(int argc, char **argv) {
    int vendor = argc > 1 && !strcmp(argv[1], "--vendor");
    argc -= vendor;
    argv += vendor;
    int scattered = argc > 1 && !strcmp(argv[1], "--scattered");
    argc -= scattered;
    argv += scattered;
    int single = argc == 3 && !strcmp(argv[1], "--once");
    size_t smallest = single || argc > 2 ? strtoull(argv[1 + single], NULL, 0) : (size_t)32 << 10;
    size_t largest = argc > 2 ? strtoull(argv[2], NULL, 0) : (size_t)256 << 20;
    if (!smallest || smallest > largest) {
        fprintf(stderr, "usage: transfer [--vendor] [--scattered] [SMALLEST LARGEST | --once BYTES]\n");
        return 2;
    }
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    check(error, "context");
    queue = clCreateCommandQueue(context, device, vendor ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &error);
    check(error, "queue");
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, largest, NULL, &error);
    check(error, "buffer");
    host = allocate(largest, scattered);
    if (single) {
        once(largest);
        return 0;
    }
    verify(smallest + 1 < largest ? smallest + 1 : smallest);
    verify(largest);
    printf("{");
    table("write_MBps", write_buffer, smallest, largest);
    printf(", ");
    table("read_MBps", read_buffer, smallest, largest);
    printf("}\n");
    return 0;
}
