#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "guest/export_tables.h"

int device_count;
struct device devices[DEVICE_MAXIMUM];
size_t context_bytes;

/* On the bus, as devices are numbered without CUDA_VISIBLE_DEVICES. */
enum { FIRST_BUS = 0x10 };

static const char device_name[] = "Aviary Reference Device";

CUresult devices_start(void)
{
    const char *count = getenv("REFCUDA_DEVICES"), *memory = getenv("REFCUDA_MEMORY"), *context = getenv("REFCUDA_CONTEXT");
    size_t bytes;
    int there = count ? atoi(count) : 1, numbers[DEVICE_MAXIMUM];
    CUresult result;

    context_bytes = context ? strtoull(context, NULL, 0) : 0;
    if (there <= 0)
        return CUDA_ERROR_NO_DEVICE;
    if (!shared_memory_start(memory, &bytes))
        return CUDA_ERROR_OPERATING_SYSTEM;
    result = visible_devices(there < DEVICE_MAXIMUM ? there : DEVICE_MAXIMUM, numbers, &device_count);
    if (result != CUDA_SUCCESS)
        return result;
    for (CUdevice i = 0; i < device_count; i++) {
        devices[i].number = numbers[i];
        devices[i].memory = bytes;
        devices[i].primary = context_create(i, true);
        if (!devices[i].primary)
            return CUDA_ERROR_OUT_OF_MEMORY;
        devices[i].default_pool = devices[i].pool = pool_create(i);
        if (!devices[i].pool)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

#define A(name) CU_DEVICE_ATTRIBUTE_##name
/* An H100's, as far as this device keeps to it; what is not listed is 0. */
static const int attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    [A(MAX_THREADS_PER_BLOCK)] = 1024,
    [A(MAX_BLOCK_DIM_X)] = 1024,
    [A(MAX_BLOCK_DIM_Y)] = 1024,
    [A(MAX_BLOCK_DIM_Z)] = 64,
    [A(MAX_GRID_DIM_X)] = 2147483647,
    [A(MAX_GRID_DIM_Y)] = 65535,
    [A(MAX_GRID_DIM_Z)] = 65535,
    [A(MAX_SHARED_MEMORY_PER_BLOCK)] = 49152,
    [A(TOTAL_CONSTANT_MEMORY)] = 65536,
    [A(WARP_SIZE)] = 32,
    [A(MAX_PITCH)] = 2147483647,
    [A(MAX_REGISTERS_PER_BLOCK)] = 65536,
    [A(CLOCK_RATE)] = 1980000,
    [A(TEXTURE_ALIGNMENT)] = 512,
    [A(GPU_OVERLAP)] = 1,
    [A(MULTIPROCESSOR_COUNT)] = 132,
    [A(CAN_MAP_HOST_MEMORY)] = 1,
    [A(MAXIMUM_TEXTURE1D_WIDTH)] = 131072,
    [A(MAXIMUM_TEXTURE2D_WIDTH)] = 131072,
    [A(MAXIMUM_TEXTURE2D_HEIGHT)] = 65536,
    [A(MAXIMUM_TEXTURE3D_WIDTH)] = 16384,
    [A(MAXIMUM_TEXTURE3D_HEIGHT)] = 16384,
    [A(MAXIMUM_TEXTURE3D_DEPTH)] = 16384,
    [A(SURFACE_ALIGNMENT)] = 512,
    [A(CONCURRENT_KERNELS)] = 1,
    [A(ECC_ENABLED)] = 1,
    [A(MEMORY_CLOCK_RATE)] = 2619000,
    [A(GLOBAL_MEMORY_BUS_WIDTH)] = 5120,
    [A(L2_CACHE_SIZE)] = 52428800,
    [A(MAX_THREADS_PER_MULTIPROCESSOR)] = 2048,
    [A(ASYNC_ENGINE_COUNT)] = 3,
    [A(UNIFIED_ADDRESSING)] = 1,
    [A(TEXTURE_PITCH_ALIGNMENT)] = 32,
    [A(COMPUTE_CAPABILITY_MAJOR)] = 9,
    [A(COMPUTE_CAPABILITY_MINOR)] = 0,
    [A(STREAM_PRIORITIES_SUPPORTED)] = 1,
    [A(GLOBAL_L1_CACHE_SUPPORTED)] = 1,
    [A(LOCAL_L1_CACHE_SUPPORTED)] = 1,
    [A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)] = 233472,
    [A(MAX_REGISTERS_PER_MULTIPROCESSOR)] = 65536,
    [A(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO)] = 2,
    [A(MANAGED_MEMORY)] = 1,
    [A(CONCURRENT_MANAGED_ACCESS)] = 1,
    [A(COMPUTE_PREEMPTION_SUPPORTED)] = 1,
    [A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)] = 1,
    [A(COOPERATIVE_LAUNCH)] = 1,
    [A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)] = 232448,
    [A(HOST_REGISTER_SUPPORTED)] = 1,
    [A(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)] = 1,
    [A(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)] = 1,
    [A(IPC_EVENT_SUPPORTED)] = 1,
    [A(MAX_BLOCKS_PER_MULTIPROCESSOR)] = 32,
    [A(RESERVED_SHARED_MEMORY_PER_BLOCK)] = 1024,
    [A(MEMORY_POOLS_SUPPORTED)] = 1,
    [A(CAN_USE_64_BIT_STREAM_MEM_OPS)] = 1,
    [A(UNIFIED_FUNCTION_POINTERS)] = 1,
    [A(MEM_SYNC_DOMAIN_COUNT)] = 4,
    [A(NUMA_ID)] = -1,
    [A(HOST_NUMA_ID)] = -1,
    [A(GPU_PCI_DEVICE_ID)] = 0x233010de,
};
#undef A

int device_attribute(CUdevice_attribute attribute, CUdevice device)
{
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        return FIRST_BUS + devices[device].number;
    return attributes[attribute];
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = device_attribute(attribute, device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    if (!name || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)size, "%s", device_name);
    return CUDA_SUCCESS;
}

static CUuuid uuid_of(int number)
{
    CUuuid uuid;

    memcpy(uuid.bytes, "AviaryReference", 15);
    uuid.bytes[15] = (char)number;
    return uuid;
}

void device_uuid_text(int number, char text[UUID_TEXT])
{
    CUuuid uuid = uuid_of(number);
    char *to = text + sprintf(text, "GPU");

    for (size_t i = 0; i < sizeof(uuid.bytes); i++)
        to += sprintf(to, "%s%02x", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid.bytes[i]);
}

CUdevice device_with_number(int number)
{
    for (CUdevice i = 0; i < device_count; i++)
        if (devices[i].number == number)
            return i;
    return -1;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *uuid = uuid_of(devices[device].number);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = devices[device].memory;
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *major = attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device)
{
    if (!properties)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *properties = (CUdevprop){
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = 49152,
        .totalConstantMemory = 65536,
        .SIMDWidth = 32,
        .memPitch = 2147483647,
        .regsPerBlock = 65536,
        .clockRate = 1980000,
        .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device)
{
    if (!text || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)size, "0000:%02X:00.0", FIRST_BUS + devices[device].number);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    unsigned domain = 0, bus, slot;

    if (!device || !text)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 && (domain = 0, sscanf(text, "%x:%x", &bus, &slot) != 2))
        return CUDA_ERROR_INVALID_VALUE;
    if (domain || slot || !device_valid(device_with_number((int)bus - FIRST_BUS)))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = device_with_number((int)bus - FIRST_BUS);
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *possible, CUdevice device, CUdevice peer)
{
    if (!possible)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device) || !device_valid(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *possible = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination)
{
    if (!value || (int)attribute < 1 || (int)attribute > 5)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(source) || !device_valid(destination) || source == destination)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device)
{
    if (!supported || type >= CU_EXEC_AFFINITY_TYPE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *supported = 0;
    return CUDA_SUCCESS;
}

/* --- what the export tables ask for --- */

CUresult export_tables_primary_context(CUcontext *context, CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *context = devices[device].primary;
    return CUDA_SUCCESS;
}

CUresult export_tables_clusters(CUdevice device, size_t count, uint8_t *place, uint8_t *graphics_cluster)
{
    enum { CLUSTERS_OF_A_GROUP = 9 };

    (void)device;
    for (size_t i = 0; i < count; i++) {
        place[i] = (uint8_t)(i % CLUSTERS_OF_A_GROUP);
        graphics_cluster[i] = (uint8_t)(i / CLUSTERS_OF_A_GROUP);
    }
    return CUDA_SUCCESS;
}
