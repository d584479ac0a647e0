/* Attributes of devices: what never changes is asked once, what other processes would need is denied. */
#include "guest/registered_memory.h"

/* Attributes that need more than another process on this node: memory of other machines, direct access by other devices. */
int cuda_attribute_denied(CUdevice_attribute attribute) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        return !cuda_shares_memory();
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        return !cuda_pages_can_be_exchanged();
    /* Managed memory lies in the host's: the device's atomic operations on it are none for the CPU. */
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
    case CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
        return 1;
    default:
        return 0;
    }
}

CUresult cuda_deny_attribute(int *value) {
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}

#define MOST_DEVICES_KNOWN 16
#define MOST_ATTRIBUTES_KNOWN 256

/* The answer, and a mark that it is there, in one word. */
static uint64_t attributes[MOST_DEVICES_KNOWN][MOST_ATTRIBUTES_KNOWN];
#define KNOWN ((uint64_t)1 << 32)

static uint64_t *attribute_at(CUdevice_attribute attribute, CUdevice device) {
    int known = device >= 0 && device < MOST_DEVICES_KNOWN && (int)attribute >= 0 && (int)attribute < MOST_ATTRIBUTES_KNOWN;
    return known ? &attributes[device][attribute] : NULL;
}

int cuda_attribute_known(CUdevice_attribute attribute, CUdevice device) {
    const uint64_t *at = attribute_at(attribute, device);
    return at && (__atomic_load_n(at, __ATOMIC_RELAXED) & KNOWN);
}

CUresult cuda_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    *value = (int)(uint32_t)__atomic_load_n(attribute_at(attribute, device), __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

void cuda_note_attribute(int value, CUdevice_attribute attribute, CUdevice device) {
    uint64_t *at = attribute_at(attribute, device);
    if (at)
        __atomic_store_n(at, KNOWN | (uint32_t)value, __ATOMIC_RELAXED);
}
