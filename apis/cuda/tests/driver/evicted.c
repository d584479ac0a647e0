/* Every kind of device memory that can leave a device and return, written in steps, so that it can do so between them:
 *   evicted      makes a step for each line of its input, and one at its end; prints digests of all memory
 * Large and small allocations, memory that the program maps itself, twice for a part of it, a module's variable, and a graph that
 * was instantiated before the first step and knows all addresses. */
#include "common.h"
#include "kernels.h"

enum { LARGE = 3 << 20, SMALL = 40000, SMALLS = 6, GRANULE = 2 << 20, LAST = 2 * GRANULE, AREAS = 3 };
/* What is mapped twice is larger than a piece of a small device's memory. */
enum { RESERVED = GRANULE + 2 * LAST };

static CUdeviceptr areas[AREAS + SMALLS];
static size_t bytes_of[AREAS + SMALLS];
static CUdeviceptr reserved;

static CUmemGenericAllocationHandle map(CUdeviceptr at, size_t bytes)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle memory;

    MUST(cuMemCreate(&memory, bytes, &properties, 0));
    MUST(cuMemMap(at, bytes, 0, memory, 0));
    return memory;
}

static void allow(CUdeviceptr at, size_t bytes)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    MUST(cuMemSetAccess(at, bytes, &access, 1));
}

/* The second mapping of the last memory comes behind all. */
static void allocate(void)
{
    CUmemGenericAllocationHandle first, last;

    MUST(cuMemAlloc(&areas[0], bytes_of[0] = LARGE));
    MUST(cuMemAddressReserve(&reserved, RESERVED, 0, 0, 0));
    first = map(reserved, GRANULE);
    last = map(reserved + GRANULE, LAST);
    MUST(cuMemMap(reserved + GRANULE + LAST, LAST, 0, last, 0));
    allow(reserved, RESERVED);
    /* Of the first only the mapping remains. */
    MUST(cuMemRelease(first));
    areas[1] = reserved, bytes_of[1] = GRANULE;
    areas[2] = reserved + GRANULE, bytes_of[2] = LAST;
    for (int i = AREAS; i < AREAS + SMALLS; i++)
        MUST(cuMemAlloc(&areas[i], bytes_of[i] = SMALL + 512 * (size_t)i));
}

static CUgraphExec record(CUmodule module, CUstream stream)
{
    CUfunction fill, saxpy, count;
    CUgraphExec exec;
    CUgraph graph;
    float factor = 0.5f;

    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuModuleGetFunction(&saxpy, module, "saxpy"));
    MUST(cuModuleGetFunction(&count, module, "count"));
    for (int i = 0; i < AREAS + SMALLS; i++) {
        unsigned words = (unsigned)(bytes_of[i] / 4), first = 0x3f800000u + (unsigned)i;
        void *parameters[] = {&areas[i], &first, &words};
        MUST(cuLaunchKernel(fill, (words + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
    }
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < AREAS + SMALLS; i++) {
        unsigned words = (unsigned)(bytes_of[i] / 8);
        CUdeviceptr x = areas[i], y = areas[i] + 4 * (CUdeviceptr)words;
        void *parameters[] = {&factor, &x, &y, &words};
        MUST(cuLaunchKernel(saxpy, (words + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
    }
    MUST(cuLaunchKernel(count, 2, 1, 1, 32, 1, 1, 0, stream, (void *[]){NULL}, NULL));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    return exec;
}

static uint64_t digest(CUdeviceptr at, size_t bytes)
{
    void *found = malloc(bytes);
    uint64_t sum;

    CHECK(found);
    MUST(cuMemcpyDtoH(found, at, bytes));
    sum = checksum(found, bytes);
    free(found);
    return sum;
}

static void step(CUgraphExec exec, CUstream stream, CUdeviceptr counter, size_t counter_bytes)
{
    uint64_t sum = 0;

    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < AREAS + SMALLS; i++)
        sum = sum * 31 + digest(areas[i], bytes_of[i]);
    CHECK(digest(reserved + GRANULE + LAST, LAST) == digest(areas[2], LAST));
    printf("step %016llx, counted %016llx\n", (unsigned long long)sum, (unsigned long long)digest(counter, counter_bytes));
}

int main(void)
{
    CUcontext context = start();
    size_t counter_bytes;
    CUdeviceptr counter;
    CUstream stream;
    CUmodule module;
    CUgraphExec exec;
    char line[64];

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetGlobal(&counter, &counter_bytes, module, "counter"));
    allocate();
    exec = record(module, stream);
    do
        step(exec, stream, counter, counter_bytes);
    while (fgets(line, sizeof line, stdin));
    MUST(cuMemUnmap(reserved, RESERVED));
    MUST(cuMemAddressFree(reserved, RESERVED));
    for (int i = 0; i < AREAS + SMALLS; i++)
        if (i == 0 || i >= AREAS)
            MUST(cuMemFree(areas[i]));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuCtxDestroy(context));
    puts("ok evicted");
    return 0;
}
