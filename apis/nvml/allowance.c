/* The part of the machine that a tenant sees: the devices that it may use, and of their memory, which CUDA charges as `device_memory`, its part. */
#include "nvml_types.h"
#include <aviary/server.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64 };

/* The name under which memory on the device is charged: a second device of the same name has a number (apis/cuda/server/device_ordinal.c,
 * which counts in CUDA's order; of equal devices that is NVML's). */
static int shown_name(nvmlDevice_t device, char *shown, size_t bytes) {
    char name[NAME_BYTES], other[NAME_BYTES];
    unsigned int index, same = 0;
    nvmlDevice_t before;
    if (nvmlDeviceGetName(device, name, sizeof name) != NVML_SUCCESS || nvmlDeviceGetIndex(device, &index) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < index; i++)
        same += nvmlDeviceGetHandleByIndex_v2(i, &before) == NVML_SUCCESS &&
                nvmlDeviceGetName(before, other, sizeof other) == NVML_SUCCESS && strcmp(name, other) == 0;
    if (same)
        snprintf(shown, bytes, "%.50s #%u", name, same + 1);
    else
        snprintf(shown, bytes, "%s", name);
    return 1;
}

/* 0: the tenant may have all of it. */
static int show(nvmlDevice_t device, unsigned long long *total, unsigned long long *available, unsigned long long *used) {
    char shown[NAME_BYTES + 8];
    uint64_t limit, left;
    if (!aviary_allowance("device_memory", shown_name(device, shown, sizeof shown) ? shown : NULL, &limit, &left))
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
    /* Memory that the driver keeps is not the tenant's. */
    if (result == NVML_SUCCESS && show(device, &memory->total, &memory->free, &memory->used))
        memory->reserved = 0;
    return result;
}

void *nvml_memory_info_v2_function(void) {
    return (void *)memory_info_v2;
}

/* ---- Which devices there are for the tenant ---------------------------------------------------- */

static int is_the_tenants(nvmlDevice_t device) {
    char shown[NAME_BYTES + 8];
    return aviary_may_use(NULL) || aviary_may_use(shown_name(device, shown, sizeof shown) ? shown : "unknown");
}

/* How many of the first devices are the tenant's; `last` is the last of them. */
static unsigned int count_the_tenants(unsigned int first, unsigned int most, nvmlDevice_t *last) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < first && count < most; i++) {
        nvmlDevice_t device;
        if (nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS && is_the_tenants(device)) {
            *last = device;
            count++;
        }
    }
    return count;
}

static nvmlReturn_t device_count(unsigned int *count) {
    nvmlDevice_t last;
    nvmlReturn_t result = nvmlDeviceGetCount_v2(count);
    if (result == NVML_SUCCESS && !aviary_may_use(NULL))
        *count = count_the_tenants(*count, *count, &last);
    return result;
}

void *nvml_device_count_function(void) {
    return (void *)device_count;
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device) {
    unsigned int all = 0;
    nvmlDevice_t found;
    if (aviary_may_use(NULL))
        return nvmlDeviceGetHandleByIndex_v2(index, device);
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&all);
    if (result != NVML_SUCCESS)
        return result;
    if (!device || index >= all || count_the_tenants(all, index + 1, &found) <= index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = found;
    return NVML_SUCCESS;
}

void *nvml_by_index_function(void) {
    return (void *)by_index;
}

/* The device that the library found, if it is the tenant's. */
static nvmlReturn_t shown(nvmlReturn_t result, nvmlDevice_t found, nvmlDevice_t *device) {
    if (result != NVML_SUCCESS)
        return result;
    if (!is_the_tenants(found))
        return NVML_ERROR_NOT_FOUND;
    *device = found;
    return NVML_SUCCESS;
}

static nvmlReturn_t by_uuid(const char *uuid, nvmlDevice_t *device) {
    nvmlDevice_t found = NULL;
    nvmlReturn_t result = device ? nvmlDeviceGetHandleByUUID(uuid, &found) : NVML_ERROR_INVALID_ARGUMENT;
    return shown(result, found, device);
}

void *nvml_by_uuid_function(void) {
    return (void *)by_uuid;
}

static nvmlReturn_t by_bus_id(const char *bus_id, nvmlDevice_t *device) {
    nvmlDevice_t found = NULL;
    nvmlReturn_t result = device ? nvmlDeviceGetHandleByPciBusId_v2(bus_id, &found) : NVML_ERROR_INVALID_ARGUMENT;
    return shown(result, found, device);
}

void *nvml_by_bus_id_function(void) {
    return (void *)by_bus_id;
}

static nvmlReturn_t device_index(nvmlDevice_t device, unsigned int *index) {
    nvmlDevice_t last;
    nvmlReturn_t result = nvmlDeviceGetIndex(device, index);
    if (result == NVML_SUCCESS && !aviary_may_use(NULL))
        *index = count_the_tenants(*index, *index, &last);
    return result;
}

void *nvml_device_index_function(void) {
    return (void *)device_index;
}
