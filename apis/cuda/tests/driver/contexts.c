/* Contexts: pushed, popped, primary, in threads; what they take with them; and how much memory there is. */
#include "common.h"

#include <pthread.h>

static void *thread(void *argument)
{
    CUcontext current;
    CUdeviceptr memory;

    MUST(cuCtxGetCurrent(&current));
    printf("a new thread has %s\n", current ? "a context" : "none");
    TELL(cuMemAlloc(&memory, 16));
    MUST(cuCtxSetCurrent(argument));
    MUST(cuMemAlloc(&memory, 16));
    MUST(cuMemFree(memory));
    return NULL;
}

static void stack(CUcontext first)
{
    CUcontext second, current, popped;
    CUdevice device;
    unsigned long long id, other_id;
    unsigned version;

    MUST(cuCtxCreate(&second, NULL, CU_CTX_SCHED_YIELD, 0));
    MUST(cuCtxGetCurrent(&current));
    printf("second is current: %d\n", current == second);
    MUST(cuCtxPushCurrent(first));
    MUST(cuCtxGetCurrent(&current));
    printf("first is current: %d\n", current == first);
    MUST(cuCtxPopCurrent(&popped));
    MUST(cuCtxGetCurrent(&current));
    printf("popped first, second is current: %d %d\n", popped == first, current == second);
    MUST(cuCtxGetDevice(&device));
    MUST(cuCtxGetId(first, &id));
    MUST(cuCtxGetId(second, &other_id));
    MUST(cuCtxGetApiVersion(second, &version));
    printf("device %d, ids differ: %d, version %u\n", device, id != other_id, version);
    MUST(cuCtxDestroy(second));
    MUST(cuCtxGetCurrent(&current));
    printf("after its end, first is current: %d\n", current == first);
}

/* Parameters that a context may be made with: an H100 refuses them like this, without MPS and without graphics. */
static void parameters(void)
{
    CUexecAffinityParam affinity = {.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT, .param = {.smCount = {.val = 1}}};
    CUctxCigParam graphics = {.sharedDataType = CIG_DATA_TYPE_NV_BLOB, .sharedData = &affinity};
    CUctxCreateParams multiprocessors = {.execAffinityParams = &affinity, .numExecAffinityParams = 1};
    CUctxCreateParams missing = {.numExecAffinityParams = 1};
    CUctxCreateParams negative = {.execAffinityParams = &affinity, .numExecAffinityParams = -1};
    CUctxCreateParams shared = {.cigParams = &graphics};
    CUcontext context;

    TELL(cuCtxCreate(&context, &multiprocessors, 0, 0));
    TELL(cuCtxCreate(&context, &missing, 0, 0));
    TELL(cuCtxCreate(&context, &shared, 0, 0));
    MUST(cuCtxCreate(&context, &negative, 0, 0));
    MUST(cuCtxDestroy(context));
}

static void primary(CUcontext own)
{
    CUcontext context, again;
    CUdeviceptr memory;
    unsigned flags;
    int active;

    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("primary active: %d\n", active);
    TELL(cuDevicePrimaryCtxRelease(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuDevicePrimaryCtxRetain(&again, 0));
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("the same: %d, active: %d, not our own: %d\n", context == again, active, context != own);
    MUST(cuCtxPushCurrent(context));
    MUST(cuMemAlloc(&memory, 1000));
    MUST(cuDevicePrimaryCtxRelease(0));
    MUST(cuMemsetD8(memory, 0, 1000));
    MUST(cuCtxPopCurrent(NULL));
    MUST(cuDevicePrimaryCtxRelease(0));
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("primary active: %d\n", active);
}

/* Of sizes, only what must hold on every device. */
static void memory_limits(void)
{
    size_t available, total, before, after;
    CUdeviceptr memory, huge;
    CUmemoryPool pool;
    CUstream stream;

    MUST(cuMemGetInfo(&before, &total));
    MUST(cuMemAlloc(&memory, 64 << 20));
    MUST(cuMemGetInfo(&available, &total));
    printf("64 MiB less: %d\n", before - available >= 64 << 20 && available < total);
    TELL(cuMemAlloc(&huge, total));
    TELL(cuMemAlloc(&huge, (size_t)1 << 60));
    MUST(cuMemFree(memory));
    MUST(cuMemGetInfo(&after, &total));
    printf("all back: %d\n", after == before);

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAllocAsync(&memory, 100000, stream));
    MUST(cuMemsetD8Async(memory, 1, 100000, stream));
    MUST(cuMemFreeAsync(memory, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuMemAllocFromPoolAsync(&memory, 5000, pool, stream));
    cuuint64_t used;
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    printf("the pool counts 5000 bytes or more: %d\n", used >= 5000);
    MUST(cuMemFreeAsync(memory, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy(stream));
}

/* No allocation shows the contents of an earlier one. */
static void scrubbed(void)
{
    enum { SIZE = 3 << 20 };
    static unsigned char bytes[SIZE];
    CUdeviceptr memory;

    MUST(cuMemAlloc(&memory, SIZE));
    MUST(cuMemsetD8(memory, 0x5a, SIZE));
    MUST(cuMemFree(memory));
    MUST(cuMemAlloc(&memory, SIZE));
    MUST(cuMemcpyDtoH(bytes, memory, SIZE));
    for (int i = 0; i < SIZE && getenv("EXPECT_SCRUBBED"); i++)
        CHECK(bytes[i] != 0x5a);
    MUST(cuMemFree(memory));
    puts("scrubbed");
}

static void mapped(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle first, second;
    CUdeviceptr address, wanted = 0x109000000000;
    size_t page;
    unsigned value;

    MUST(cuMemGetAllocationGranularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    MUST(cuMemAddressReserve(&address, 4 * page, 0, wanted, 0));
    /* NVIDIA's driver may have other plans for that address. */
    CHECK(address % page == 0 && (address == wanted || !getenv("EXPECT_SCRUBBED")));
    printf("page of %zu bytes\n", page);
    MUST(cuMemCreate(&first, page, &properties, 0));
    /* As PyTorch's allocator asks for it; nobody exports it. */
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(cuMemCreate(&second, page, &properties, 0));
    MUST(cuMemMap(address, page, 0, first, 0));
    MUST(cuMemMap(address + page, page, 0, second, 0));
    TELL(cuMemMap(address + page, page, 0, second, 0));
    MUST(cuMemRelease(second));
    MUST(cuMemSetAccess(address, 2 * page, &access, 1));
    /* Across the border of the two. */
    MUST(cuMemsetD32(address + page - 8, 0xabcd, 4));
    MUST(cuMemcpyDtoH(&value, address + page + 4, 4));
    printf("across: %x\n", value);
    MUST(cuMemUnmap(address, page));
    TELL(cuMemsetD32(address, 0, 1));
    /* The same memory at another address. */
    MUST(cuMemMap(address + 2 * page, page, 0, first, 0));
    MUST(cuMemSetAccess(address + 2 * page, page, &access, 1));
    MUST(cuMemcpyDtoH(&value, address + 3 * page - 4, 4));
    printf("elsewhere: %x\n", value);
    MUST(cuMemUnmap(address + page, 2 * page));
    MUST(cuMemRelease(first));
    MUST(cuMemAddressFree(address, 4 * page));
}

/* Every kind of copy, by several sizes. */
static bool copies_are_right(CUdeviceptr device, char *here, char *back, char *pinned)
{
    static const size_t sizes[] = {4, 5000, 40000, 3 << 20};
    bool right = true;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t size = sizes[i];

        fill_bytes(here, size, (unsigned)i);
        memset(back, 0, size);
        MUST(cuMemcpyHtoD(device, here, size));
        MUST(cuMemcpyDtoH(back, device, size));
        right = right && memcmp(here, back, size) == 0;
        memset(back, 0, size);
        MUST(cuMemcpyDtoHAsync(back, device, size, NULL));
        MUST(cuStreamSynchronize(NULL));
        right = right && memcmp(here, back, size) == 0;
        memset(pinned, 0, size);
        MUST(cuMemcpyDtoH(pinned, device, size));
        right = right && memcmp(here, pinned, size) == 0;
        fill_bytes(pinned, size, (unsigned)i + 100);
        MUST(cuMemcpyHtoD(device, pinned, size));
        MUST(cuMemcpyDtoH(back, device, size));
        right = right && memcmp(pinned, back, size) == 0;
    }
    return right;
}

/* The buffers of copies belong to the context, and go with it. */
static void copies_after_reset(void)
{
    enum { ROOM = 3 << 20 };
    char *here = malloc(ROOM), *back = malloc(ROOM), *pinned;
    CUcontext context;
    CUdeviceptr device;

    CHECK(here && back);
    for (int round = 0; round < 3; round++) {
        MUST(cuDevicePrimaryCtxRetain(&context, 0));
        MUST(cuCtxSetCurrent(context));
        MUST(cuMemAlloc(&device, ROOM));
        MUST(cuMemAllocHost((void **)&pinned, ROOM));
        printf("copies after %d resets: %s\n", round, copies_are_right(device, here, back, pinned) ? "right" : "wrong");
        MUST(cuMemFreeHost(pinned));
        MUST(cuMemFree(device));
        MUST(cuCtxSetCurrent(NULL));
        MUST(cuDevicePrimaryCtxReset(0));
    }
    free(here);
    free(back);
}

int main(void)
{
    CUcontext context = start(), current;
    pthread_t other;

    parameters();
    stack(context);
    CHECK(pthread_create(&other, NULL, thread, context) == 0);
    pthread_join(other, NULL);
    primary(context);
    memory_limits();
    scrubbed();
    mapped();
    MUST(cuCtxDestroy(context));
    MUST(cuCtxGetCurrent(&current));
    printf("at the end: %s\n", current ? "a context" : "none");
    copies_after_reset();
    puts("ok contexts");
    return 0;
}
