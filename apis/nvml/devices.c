/* The devices that the tenant may use, in the place of those that the library knows. */
#include "nvml_server.h"
#include <aviary/server.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The name under which memory on the device is charged: a second device of the same name has a number (apis/cuda/server/device_ordinal.c,
 * which counts in CUDA's order; of equal devices that is NVML's). */
int nvml_shown_name(nvmlDevice_t device, char *shown_name, size_t bytes) {
    char name[NAME_BYTES], other[NAME_BYTES];
    unsigned int index, same = 0;
    nvmlDevice_t before;
    if (nvmlDeviceGetName(device, name, sizeof name) != NVML_SUCCESS || nvmlDeviceGetIndex(device, &index) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < index; i++)
        same += nvmlDeviceGetHandleByIndex_v2(i, &before) == NVML_SUCCESS &&
                nvmlDeviceGetName(before, other, sizeof other) == NVML_SUCCESS && strcmp(name, other) == 0;
    if (same)
        snprintf(shown_name, bytes, "%.50s #%u", name, same + 1);
    else
        snprintf(shown_name, bytes, "%s", name);
    return 1;
}

static int is_of_tenant(nvmlDevice_t device) {
    char shown_name[SHOWN_NAME_BYTES];
    return aviary_may_use(NULL) || aviary_may_use(nvml_shown_name(device, shown_name, sizeof shown_name) ? shown_name : "unknown");
}

/* How many of the first devices are the tenant's; `last` is the last of them. */
static unsigned int count_of_tenant(unsigned int first, unsigned int most, nvmlDevice_t *last) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < first && count < most; i++) {
        nvmlDevice_t device;
        if (nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS && is_of_tenant(device)) {
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
        *count = count_of_tenant(*count, *count, &last);
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
    if (!device || index >= all || count_of_tenant(all, index + 1, &found) <= index)
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
    if (!is_of_tenant(found))
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
        *index = count_of_tenant(*index, *index, &last);
    return result;
}

void *nvml_device_index_function(void) {
    return (void *)device_index;
}

static nvmlReturn_t by_serial(const char *serial, nvmlDevice_t *device) {
    nvmlDevice_t found = NULL;
    nvmlReturn_t result = device ? nvmlDeviceGetHandleBySerial(serial, &found) : NVML_ERROR_INVALID_ARGUMENT;
    return shown(result, found, device);
}

void *nvml_by_serial_function(void) {
    return (void *)by_serial;
}

static nvmlReturn_t by_uuidv(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    nvmlDevice_t found = NULL;
    nvmlReturn_t result = device ? nvmlDeviceGetHandleByUUIDV(uuid, &found) : NVML_ERROR_INVALID_ARGUMENT;
    return shown(result, found, device);
}

void *nvml_by_uuidv_function(void) {
    return (void *)by_uuidv;
}

/* ---- Lists of devices ---------------------------------------------------------------------------- */

enum { MOST_DEVICES = 256 };

/* Hands out the tenant's devices among those found. `room` is the caller's number of elements, 0 to ask for the number. */
static nvmlReturn_t hand_out(const nvmlDevice_t *found, unsigned int all, unsigned int *count, nvmlDevice_t *devices) {
    unsigned int room = *count, number = 0;
    for (unsigned int i = 0; i < all; i++)
        if (is_of_tenant(found[i])) {
            if (devices && number < room)
                devices[number] = found[i];
            number++;
        }
    *count = number;
    return number > room && room != 0 ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t unit_devices(nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices) {
    nvmlDevice_t found[MOST_DEVICES];
    unsigned int all = MOST_DEVICES;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlUnitGetDevices(unit, &all, found);
    return result == NVML_SUCCESS ? hand_out(found, all, count, devices) : result;
}

void *nvml_unit_devices_function(void) {
    return (void *)unit_devices;
}

static nvmlReturn_t topology_set(unsigned int processor, unsigned int *count, nvmlDevice_t *devices) {
    nvmlDevice_t found[MOST_DEVICES];
    unsigned int all = MOST_DEVICES;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlSystemGetTopologyGpuSet(processor, &all, found);
    return result == NVML_SUCCESS ? hand_out(found, all, count, devices) : result;
}

void *nvml_topology_set_function(void) {
    return (void *)topology_set;
}

static nvmlReturn_t nearest(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count, nvmlDevice_t *devices) {
    nvmlDevice_t found[MOST_DEVICES];
    unsigned int all = MOST_DEVICES;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlDeviceGetTopologyNearestGpus(device, level, &all, found);
    return result == NVML_SUCCESS ? hand_out(found, all, count, devices) : result;
}

void *nvml_nearest_function(void) {
    return (void *)nearest;
}

/* Devices that the driver leaves out are nobody's: a tenant that may use all sees them. */
static nvmlReturn_t excluded_count(unsigned int *count) {
    nvmlReturn_t result = nvmlGetExcludedDeviceCount(count);
    if (result == NVML_SUCCESS && !aviary_may_use(NULL))
        *count = 0;
    return result;
}

void *nvml_excluded_count_function(void) {
    return (void *)excluded_count;
}

static nvmlReturn_t excluded_info(unsigned int index, nvmlExcludedDeviceInfo_t *info) {
    return aviary_may_use(NULL) ? nvmlGetExcludedDeviceInfoByIndex(index, info) : NVML_ERROR_INVALID_ARGUMENT;
}

void *nvml_excluded_info_function(void) {
    return (void *)excluded_info;
}

/* ---- Devices by their place on the bus ----------------------------------------------------------- */

int nvml_may_use_bus(unsigned int domain, unsigned int bus, unsigned int number) {
    char name[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
    nvmlDevice_t found;
    snprintf(name, sizeof name, "%08x:%02x:%02x.0", domain, bus, number);
    return aviary_may_use(NULL) || (nvmlDeviceGetHandleByPciBusId_v2(name, &found) == NVML_SUCCESS && is_of_tenant(found));
}

static nvmlReturn_t drain_state(nvmlPciInfo_t *pci, nvmlEnableState_t *state) {
    if (!pci || !state || !nvml_may_use_bus(pci->domain, pci->bus, pci->device))
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceQueryDrainState(pci, state);
}

void *nvml_drain_state_function(void) {
    return (void *)drain_state;
}
