/* Of a device's memory, which CUDA charges as `device_memory`, the tenant's part. */
#include "nvml_server.h"
#include <aviary/server.h>
#include <stdint.h>

/* 0: the tenant may have all of it. */
static int show(nvmlDevice_t device, unsigned long long *total, unsigned long long *available, unsigned long long *used) {
    char shown[SHOWN_NAME_BYTES];
    uint64_t limit, left;
    if (!aviary_allowance("device_memory", nvml_shown_name(device, shown, sizeof shown) ? shown : NULL, &limit, &left))
        return 0;
    if (*total > limit)
        *total = limit;
    if (*available > left)
        *available = left;
    *used = *total - *available;
    return 1;
}

static nvmlReturn_t memory_info(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, memory);
    if (result == NVML_SUCCESS)
        show(device, &memory->total, &memory->free, &memory->used);
    return result;
}

void *nvml_memory_info_function(void) {
    return (void *)memory_info;
}

static nvmlReturn_t memory_info_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = nvml_memory_info_v2(device, memory);
    /* Memory that the driver keeps is not the tenant's. */
    if (result == NVML_SUCCESS && show(device, &memory->total, &memory->free, &memory->used))
        memory->reserved = 0;
    return result;
}

void *nvml_memory_info_v2_function(void) {
    return (void *)memory_info_v2;
}
