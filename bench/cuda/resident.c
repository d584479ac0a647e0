/* A program with much device memory that works on it in steps, so that moves between them can be checked:
 *   resident MIB      prints "ready"; after each line of its input it makes a step and prints "step N"; at the input's end "digest X"
 *   resident MIB BEGIN END   prints "ready"; makes steps until END, seconds of CLOCK_MONOTONIC; prints "steps N ALL", of which N
 *                     ended from BEGIN on, and the digest
 * The digest is of all its device memory and its variables. */
#include <time.h>
#include "../../apis/cuda/tests/driver/common.h"
#include "../../apis/cuda/tests/driver/kernels.h"

enum { PART_BYTES = 256 << 20, MOST_PARTS = 1024, THREADS = 256 };

/* Pairs of x and y; a step makes y of both. */
static CUdeviceptr parts[MOST_PARTS];
static size_t part_bytes[MOST_PARTS], part_count;
static CUmodule module;
static CUfunction fill, saxpy;
static CUstream stream;

static void allocate(size_t bytes)
{
    CHECK(bytes && bytes / PART_BYTES < MOST_PARTS);
    while (bytes) {
        size_t now = bytes < PART_BYTES ? bytes : PART_BYTES;
        MUST(cuMemAlloc(&parts[part_count], now));
        part_bytes[part_count++] = now;
        bytes -= now;
    }
    for (size_t i = 0; i < part_count; i++) {
        unsigned count = (unsigned)(part_bytes[i] / 4), first = 0x3f800000u + (unsigned)i;
        void *parameters[] = {&parts[i], &first, &count};
        MUST(cuLaunchKernel(fill, 256, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
    }
    MUST(cuStreamSynchronize(stream));
}

static void step(void)
{
    float factor = 0.5f;

    for (size_t i = 0; i < part_count; i++) {
        unsigned count = (unsigned)(part_bytes[i] / 8);
        CUdeviceptr x = parts[i], y = parts[i] + 4 * (CUdeviceptr)count;
        void *parameters[] = {&factor, &x, &y, &count};
        MUST(cuLaunchKernel(saxpy, (count + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
    }
    MUST(cuStreamSynchronize(stream));
}

static uint64_t digest(void)
{
    uint64_t sum = 14695981039346656037u;
    uint64_t *words = malloc(PART_BYTES);

    CHECK(words);
    for (size_t i = 0; i < part_count; i++) {
        MUST(cuMemcpyDtoH(words, parts[i], part_bytes[i]));
        for (size_t at = 0; at < part_bytes[i] / 8; at++)
            sum = (sum ^ words[at]) * 1099511628211u;
    }
    free(words);
    return sum;
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void steps_until(double begin, double end)
{
    unsigned counted = 0, all = 0;

    while (now() < end) {
        step();
        all++;
        counted += now() >= begin;
    }
    printf("steps %u %u\n", counted, all);
}

int main(int argc, char **argv)
{
    char line[16];
    unsigned steps = 0;

    CHECK(argc == 2 || argc == 4);
    start();
    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuModuleGetFunction(&saxpy, module, "saxpy"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    allocate((size_t)strtoull(argv[1], NULL, 10) << 20);
    printf("ready\n");
    if (argc == 4)
        steps_until(strtod(argv[2], NULL), strtod(argv[3], NULL));
    while (argc == 2 && fgets(line, sizeof(line), stdin)) {
        step();
        printf("step %u\n", ++steps);
    }
    printf("digest %016llx\n", (unsigned long long)digest());
    return 0;
}
