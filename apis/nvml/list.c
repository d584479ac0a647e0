/* The devices for `aviary devices`, with their health, and which processes have memory there, for the node. */
#include "nvml_server.h"
#include <aviary/server.h>
#include <stdio.h>
#include <stdlib.h>

enum { VERSION_BYTES = 96 };

/* NULL: nothing is known to be wrong. */
static const char *fault(nvmlDevice_t device, nvmlReturn_t asked, char *why, size_t bytes) {
    unsigned long long errors = 0;
    nvmlEnableState_t pending = NVML_FEATURE_DISABLED;
    if (asked == NVML_ERROR_GPU_IS_LOST)
        return "the device is lost: it has left the bus";
    if (asked != NVML_SUCCESS && asked != NVML_ERROR_NOT_SUPPORTED) {
        snprintf(why, bytes, "NVML cannot ask the device (error %d)", (int)asked);
        return why;
    }
    if (nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &errors) == NVML_SUCCESS && errors) {
        snprintf(why, bytes, "%llu uncorrected memory errors (ECC) since the driver was loaded", errors);
        return why;
    }
    if (nvmlDeviceGetRetiredPagesPendingStatus(device, &pending) == NVML_SUCCESS && pending == NVML_FEATURE_ENABLED)
        return "pages of its memory wait to be retired: the device needs a reset";
    return NULL;
}

void aviary_devices(void (*tell)(void *context, const struct aviary_device *device), void *context) {
    char driver[VERSION_BYTES] = "", library[VERSION_BYTES] = "", why[VERSION_BYTES];
    unsigned int count = 0;
    nvmlReturn_t result = nvmlInit_v2();
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetCount_v2(&count);
    if (result != NVML_SUCCESS) {
        snprintf(why, sizeof why, "NVML does not start (error %d)", (int)result);
        tell(context, &(struct aviary_device){.unhealthy = why});
        return;
    }
    nvmlSystemGetDriverVersion(driver, sizeof driver);
    nvmlSystemGetNVMLVersion(library, sizeof library);
    for (unsigned int at = 0; at < count; at++) {
        char name[SHOWN_NAME_BYTES] = "", uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
        nvmlDevice_t device = NULL;
        nvmlPciInfo_t pci = {0};
        nvmlMemory_t memory = {0};
        result = nvmlDeviceGetHandleByIndex_v2(at, &device);
        if (result == NVML_SUCCESS) {
            nvml_shown_name(device, name, sizeof name);
            nvmlDeviceGetUUID(device, uuid, sizeof uuid);
            nvmlDeviceGetPciInfo_v3(device, &pci);
            result = nvmlDeviceGetMemoryInfo(device, &memory);
        }
        struct aviary_device listed = {.name = name, .uuid = uuid, .driver = driver, .library = library, .pci = pci.busId,
                                       .memory = memory.total, .unhealthy = fault(device, result, why, sizeof why)};
        tell(context, &listed);
    }
}

/* More processes than a device has channels for. */
enum { MOST_HOLDERS = 4096 };

static void tell_holders(nvmlDevice_t device, nvmlProcessInfo_t *found,
                         void (*tell)(void *context, const struct aviary_holder *holder), void *context) {
    char name[SHOWN_NAME_BYTES];
    unsigned int count = MOST_HOLDERS;
    if (!nvml_shown_name(device, name, sizeof name)
        || nvmlDeviceGetComputeRunningProcesses_v3(device, &count, found) != NVML_SUCCESS)
        return;
    tell(context, &(struct aviary_holder){.device = name});
    for (unsigned int i = 0; i < count && i < MOST_HOLDERS; i++)
        if (found[i].pid && found[i].usedGpuMemory != (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
            tell(context, &(struct aviary_holder){name, found[i].pid, found[i].usedGpuMemory});
}

void aviary_holders(void (*tell)(void *context, const struct aviary_holder *holder), void *context) {
    unsigned int count = 0;
    nvmlProcessInfo_t *found = malloc(MOST_HOLDERS * sizeof *found);
    if (found && nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS)
        for (unsigned int at = 0; at < count; at++) {
            nvmlDevice_t device = NULL;
            if (nvmlDeviceGetHandleByIndex_v2(at, &device) == NVML_SUCCESS)
                tell_holders(device, found, tell, context);
        }
    free(found);
}
