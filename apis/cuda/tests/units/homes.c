/* Which device memory counts on, however it is allocated. Meant for two devices, of which the second has a limit: prints how many
 * pieces of each kind can be had there, up to MOST, while a context of the other device is current where that is possible,
 * and what the driver says that there is. */
#include "../driver/common.h"

enum { PIECE = 2 << 20, MOST = 6, KINDS = 6 };

static CUcontext contexts[2];
static CUstream streams[2];
static CUmemoryPool made[2], own[2];

static const char *const names[KINDS] = {"cuMemAlloc", "small ones", "cuMemAllocAsync", "a pool that was made", "the device's pool",
                                         "cuMemCreate"};

static CUresult allocate(int kind, int device, CUdeviceptr *piece)
{
    CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};

    switch (kind) {
    case 0: return cuMemAlloc(piece, PIECE);
    case 1: return cuMemAlloc(piece, PIECE / 2 - 1);
    case 2: return cuMemAllocAsync(piece, PIECE, streams[device]);
    case 3: return cuMemAllocFromPoolAsync(piece, PIECE, made[device], streams[device]);
    case 4: return cuMemAllocFromPoolAsync(piece, PIECE, own[device], streams[device]);
    default: return cuMemCreate((CUmemGenericAllocationHandle *)piece, PIECE, &property, 0);
    }
}

static void release(int kind, int device, CUdeviceptr piece)
{
    switch (kind) {
    case 0:
    case 1: MUST(cuMemFree(piece)); break;
    case 2:
    case 3:
    case 4: MUST(cuMemFreeAsync(piece, streams[device])); break;
    default: MUST(cuMemRelease((CUmemGenericAllocationHandle)piece));
    }
}

/* The driver's answer for the current context's device, in MiB, before and after a piece is taken. */
static void report(int device)
{
    size_t total, available[2], whole;
    CUdeviceptr piece;

    MUST(cuMemGetInfo(&available[0], &total));
    MUST(cuMemAlloc(&piece, PIECE));
    MUST(cuMemGetInfo(&available[1], &total));
    MUST(cuDeviceTotalMem(&whole, device));
    printf("device %d has %zu MiB, %zu as a whole; %zu are left, then %zu\n", device, total >> 20, whole >> 20, available[0] >> 20,
           available[1] >> 20);
    MUST(cuMemFree(piece));
}

int main(void)
{
    MUST(cuInit(0));
    for (int device = 0; device < 2; device++) {
        CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
        MUST(cuCtxCreate(&contexts[device], NULL, 0, device));
        MUST(cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING));
        MUST(cuMemPoolCreate(&made[device], &properties));
        MUST(cuDeviceGetDefaultMemPool(&own[device], device));
    }
    for (int device = 0; device < 2; device++) {
        MUST(cuCtxSetCurrent(contexts[device]));
        report(device);
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int device = 0; device < 2; device++) {
            int bound = kind < 2;
            MUST(cuCtxSetCurrent(contexts[bound ? device : 1 - device]));
            /* Twice: nothing stays charged. */
            for (int round = 0; round < 2; round++) {
                CUdeviceptr pieces[MOST] = {0};
                CUresult status = CUDA_SUCCESS;
                int count = 0;
                while (count < MOST && (status = allocate(kind, device, &pieces[count])) == CUDA_SUCCESS)
                    count++;
                printf("%s on device %d: %d, %s\n", names[kind], device, count, error_name(status));
                while (count) {
                    /* Any context may be current when memory is freed. */
                    MUST(cuCtxSetCurrent(contexts[(device + count) % 2]));
                    release(kind, device, pieces[--count]);
                }
                MUST(cuCtxSetCurrent(contexts[bound ? device : 1 - device]));
            }
        }
    puts("ok homes");
    return 0;
}
