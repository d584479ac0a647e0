/* Of a device's memory, which CUDA charges as `device_memory`, the tenant's part. */
#include "nvml_server.h"
#include <aviary/server.h>
#include <stdint.h>

/* 0: the tenant may have all of it. */
static int show(nvmlDevice_t device, unsigned long long *total, unsigned long long *available, unsigned long long *used) {
    char shown[SHOWN_NAME_BYTES];
    const char *name = nvml_shown_name(device, shown, sizeof shown) ? shown : NULL;
    struct aviary_shared_memory shared;
    uint64_t limit, left;
    int is_shared = name && aviary_shared_memory(name, &shared);
    int is_limited = aviary_allowance("device_memory", name, &limit, &left);
    if (is_shared) {
        if (*total > shared.memory)
            *total = shared.memory;
        *available = *total > shared.tenants ? *total - shared.tenants : 0;
    }
    if (is_limited && *total > limit)
        *total = limit;
    if (is_limited && *available > left)
        *available = left;
    if (is_shared || is_limited)
        *used = *total > *available ? *total - *available : 0;
    return is_shared || is_limited;
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
