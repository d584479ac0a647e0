// Copies into a device's memory and out of it, by size: ordinary and page-locked memory, every result compared. For
// where there is no nvcc and no runtime library, such as a small VM: it needs libcuda.so.1 alone.
//
//   bandwidth [LARGEST_MIB]       prints `KIND_DIRECTION SIZE_KiB GB/s` lines; status 1 and the reason if a copy is wrong
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SMALLEST ((size_t)64 << 10)
#define LEAST_ROUNDS 3
#define BYTES_PER_SIZE ((size_t)256 << 20)
#define MOST_ROUNDS 64

static double times[MOST_ROUNDS];

static void check(CUresult error, const char *what)
{
    const char *name = "?";

    if (error == CUDA_SUCCESS)
        return;
    cuGetErrorName(error, &name);
    fprintf(stderr, "bandwidth: %s: %s\n", what, name);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

// Another content for each `seed`, so that a copy that did nothing shows.
static void fill(uint64_t *words, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = (i + seed) * 0x9e3779b97f4a7c15u;
}

static void measure(const char *kind, CUdeviceptr device, uint64_t *from, uint64_t *to, size_t bytes)
{
    size_t rounds = BYTES_PER_SIZE / bytes;

    rounds = rounds < LEAST_ROUNDS ? LEAST_ROUNDS : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    fill(from, bytes, bytes);
    memset(to, 0, bytes);
    for (int out = 0; out < 2; out++) {
        for (size_t i = 0; i < rounds; i++) {
            double begin = now();

            if (out)
                check(cuMemcpyDtoH(to, device, bytes), "cuMemcpyDtoH");
            else
                check(cuMemcpyHtoD(device, from, bytes), "cuMemcpyHtoD");
            times[i] = now() - begin;
        }
        qsort(times, rounds, sizeof *times, by_value);
        printf("%s_%s %zu %.3f\n", kind, out ? "out" : "in", bytes >> 10, (double)bytes / times[rounds / 2] / 1e9);
        fflush(stdout);
    }
    if (memcmp(from, to, bytes)) {
        fprintf(stderr, "bandwidth: %s, %zu KiB: what came back is not what was written\n", kind, bytes >> 10);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    size_t largest = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 20;
    CUdeviceptr memory;
    CUcontext context;
    CUdevice device;
    char name[100];

    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
    fprintf(stderr, "%s\n", name);
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuMemAlloc(&memory, largest), "cuMemAlloc");
    for (size_t bytes = SMALLEST; bytes <= largest; bytes *= 4) {
        uint64_t *from = malloc(bytes), *to = malloc(bytes);
        void *pinned_from, *pinned_to;

        if (!from || !to) {
            fprintf(stderr, "bandwidth: no memory for %zu KiB\n", bytes >> 10);
            return 1;
        }
        measure("pageable", memory, from, to, bytes);
        free(from);
        free(to);
        check(cuMemAllocHost(&pinned_from, bytes), "cuMemAllocHost");
        check(cuMemAllocHost(&pinned_to, bytes), "cuMemAllocHost");
        measure("pinned", memory, pinned_from, pinned_to, bytes);
        check(cuMemFreeHost(pinned_from), "cuMemFreeHost");
        check(cuMemFreeHost(pinned_to), "cuMemFreeHost");
    }
    check(cuMemFree(memory), "cuMemFree");
    return 0;
}
