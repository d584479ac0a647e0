/* How much memory a device has, for a tenant that has a part of it only: CUDA charges it as `device_memory`. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64 };

/* The name under which memory on the device is charged: a second device of the same name has a number (apis/cuda/homes.c,
 * which counts in CUDA's order; of equal devices that is NVML's). */
static int home_name(nvmlDevice_t device, char *home, size_t bytes) {
    char name[NAME_BYTES], other[NAME_BYTES];
    unsigned int index, same = 0;
    nvmlDevice_t before;
    if (nvmlDeviceGetName(device, name, sizeof name) != NVML_SUCCESS || nvmlDeviceGetIndex(device, &index) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < index; i++)
        same += nvmlDeviceGetHandleByIndex_v2(i, &before) == NVML_SUCCESS &&
                nvmlDeviceGetName(before, other, sizeof other) == NVML_SUCCESS && strcmp(name, other) == 0;
    if (same)
        snprintf(home, bytes, "%.50s #%u", name, same + 1);
    else
        snprintf(home, bytes, "%s", name);
    return 1;
}

/* 0: the tenant may have all of it. */
static int show(nvmlDevice_t device, unsigned long long *total, unsigned long long *available, unsigned long long *used) {
    char home[NAME_BYTES + 8];
    uint64_t limit, left;
    if (!aviary_allowance("device_memory", home_name(device, home, sizeof home) ? home : NULL, &limit, &left))
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
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, memory);
    /* What the driver keeps is not the tenant's. */
    if (result == NVML_SUCCESS && show(device, &memory->total, &memory->free, &memory->used))
        memory->reserved = 0;
    return result;
}

void *nvml_memory_info_v2_function(void) {
    return (void *)memory_info_v2;
}
