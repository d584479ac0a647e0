/* A libnvidia-ml.so.1 for machines without NVIDIA's: two devices with fixed numbers. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stdio.h>
#include <string.h>

struct nvmlDevice_st {
    unsigned int index;
};
static struct nvmlDevice_st devices[2] = {{0}, {1}};
static int initialized;

static nvmlReturn_t text(char *to, unsigned int length, const char *from) {
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) {
    initialized++;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) {
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    initialized--;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) { return text(version, length, "580.12"); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = 13000;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 2;
    return initialized ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (!device)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (index >= 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strcmp(uuid, "GPU-1") != 0)
        return NVML_ERROR_NOT_FOUND;
    *device = &devices[1];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    if (!device || !index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = device->index;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    if (!device || !name)
        return NVML_ERROR_INVALID_ARGUMENT;
    return text(name, length, device->index ? "Second" : "First");
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    if (!device || !memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlMemory_t){.total = 100 + device->index, .free = 60, .used = 40};
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    if (!device || !memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = 200 + device->index;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    if (!device || !pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    pci->bus = 7 + device->index;
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    (void)device;
    (void)infos;
    *count = 3; /* Other people's. */
    return NVML_ERROR_INSUFFICIENT_SIZE;
}
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t capability,
                                           unsigned int *result) {
    if (!device || !result)
        return NVML_ERROR_INVALID_ARGUMENT;
    *result = device->index == link && capability == NVML_NVLINK_CAP_P2P_SUPPORTED;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    if (!device || !pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "0000000%u:%02X:00.0", device->index, link);
    return NVML_SUCCESS;
}
/* Of the older structure: the longer name at the end is the newer one's. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    if (!device || !pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    pci->bus = device->index + link;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    if (!device || !values)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        values[i].value.uiVal = 10 * values[i].fieldId + device->index;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *settings) {
    if (!settings)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (settings->version != nvmlSystemConfComputeSettings_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    settings->ccFeature = 2;
    return NVML_SUCCESS;
}
