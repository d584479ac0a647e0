/* A libnvidia-ml.so.1 for machines without NVIDIA's: two devices with fixed numbers. The functions that are not here are
 * written by functions.py. */
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvmlDevice_st {
    unsigned int index;
};
static struct nvmlDevice_st devices[4] = {{0}, {1}, {2}, {3}};
static int initialized;

/* ---- For the functions that functions.py writes -------------------------------------------------- */

int reference_started(void) {
    return initialized > 0;
}

void reference_fill(const char *name, void *to, size_t bytes) {
    unsigned int seed = 5381;
    for (; *name; name++)
        seed = seed * 33 + (unsigned char)*name;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)to)[i] = (unsigned char)(seed + i) & 0x7f;
}

int reference_text(const char *name, char *to, unsigned int length) {
    if (length < 16)
        return 0;
    snprintf(to, length < 32 ? length : 32, "%s", name + 4);
    return 1;
}

int reference_fits(unsigned int *count, const void *list) {
    unsigned int room = list ? *count : 0;
    *count = 3;
    return room >= 3;
}

void *reference_handle(int number) {
    return &devices[number & 3];
}

/* ---- The library and its devices ----------------------------------------------------------------- */

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
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return nvmlInit_v2();
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
    /* A test gives the first one the name of another API's device. */
    const char *first = getenv("REFERENCE_DEVICE");
    return text(name, length, device->index ? "Second" : first ? first : "First");
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
/* Those of other tenants: no API server asks for them. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    (void)device;
    (void)infos;
    fputs("the API server asked for processes of other tenants\n", stderr);
    *count = 3;
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
        values[i].value.uiVal = 10 * values[i].fieldId + device->index, values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
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

/* ---- Structures with pointers in them ------------------------------------------------------------ */

nvmlReturn_t nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(nvmlDevice_t device,
                                                              nvmlEccSramUniqueUncorrectedErrorCounts_t *counts) {
    if (!device || !counts)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (counts->version != nvmlEccSramUniqueUncorrectedErrorCounts_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!reference_fits(&counts->entryCount, counts->entries))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    reference_fill(__func__, counts->entries, 3 * sizeof *counts->entries);
    return NVML_SUCCESS;
}

static nvmlReturn_t placements(const char *name, nvmlVgpuPlacementList_t *list) {
    if (!list)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != nvmlVgpuPlacementList_v1 && list->version != nvmlVgpuPlacementList_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    list->placementSize = 4;
    if (!reference_fits(&list->count, list->placementIds))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    reference_fill(name, list->placementIds, 3 * sizeof *list->placementIds);
    /* Only the newer structure has it. */
    if (list->version == nvmlVgpuPlacementList_v2)
        list->mode = 9;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVgpuTypeSupportedPlacements(nvmlDevice_t device, nvmlVgpuTypeId_t kind, nvmlVgpuPlacementList_t *list) {
    (void)kind;
    return device ? placements(__func__, list) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetVgpuTypeCreatablePlacements(nvmlDevice_t device, nvmlVgpuTypeId_t kind, nvmlVgpuPlacementList_t *list) {
    (void)kind;
    return device ? placements(__func__, list) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics) {
    if (!metrics || !metrics->sample1 || !metrics->sample2 || metrics->numMetrics > NVML_GPM_METRIC_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (metrics->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    for (unsigned int i = 0; i < metrics->numMetrics; i++) {
        metrics->metrics[i].nvmlReturn = NVML_SUCCESS;
        metrics->metrics[i].value = metrics->metrics[i].metricId * 1.5;
        metrics->metrics[i].metricInfo.shortName = (char *)"short";
        metrics->metrics[i].metricInfo.longName = (char *)"a longer name";
        metrics->metrics[i].metricInfo.unit = (char *)"%";
    }
    return NVML_SUCCESS;
}

/* ---- Objects ------------------------------------------------------------------------------------- */

static int live_samples, live_sets;
static char objects[2][64];

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    if (!sample || live_samples == 64)
        return NVML_ERROR_INVALID_ARGUMENT;
    *sample = (nvmlGpmSample_t)&objects[0][live_samples++];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    if (!sample || !live_samples)
        return NVML_ERROR_INVALID_ARGUMENT;
    live_samples--;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    if (!set || live_sets == 64)
        return NVML_ERROR_INVALID_ARGUMENT;
    *set = (nvmlEventSet_t)&objects[1][live_sets++];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    if (!set || !live_sets)
        return NVML_ERROR_INVALID_ARGUMENT;
    live_sets--;
    return NVML_SUCCESS;
}
/* The first device has an event at once. */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    if (!set || !data)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (timeout_ms == 0)
        return NVML_ERROR_TIMEOUT;
    *data = (nvmlEventData_t){.device = &devices[0], .eventType = nvmlEventTypeXidCriticalError, .eventData = 31};
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    if (!instance || !info)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){.device = &devices[1], .id = 3, .profileId = 19, .placement = {2, 1}};
    return NVML_SUCCESS;
}

/* ---- Settings ------------------------------------------------------------------------------------ */

static nvmlEnableState_t persistence;

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode) {
    if (!device)
        return NVML_ERROR_INVALID_ARGUMENT;
    persistence = mode;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    if (!device || !mode)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mode = persistence;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceGetCreatableVgpus(nvmlGpuInstance_t instance, nvmlVgpuTypeIdInfo_t *kinds) {
    if (!instance || !kinds)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (kinds->version != nvmlVgpuTypeIdInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!reference_fits(&kinds->vgpuCount, kinds->vgpuTypeIds))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    reference_fill(__func__, kinds->vgpuTypeIds, 3 * sizeof *kinds->vgpuTypeIds);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceGetVgpuTypeCreatablePlacements(nvmlGpuInstance_t instance, nvmlVgpuCreatablePlacementInfo_t *list) {
    if (!instance || !list)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != nvmlVgpuCreatablePlacementInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    list->placementSize = 2;
    if (!reference_fits(&list->count, list->placementIds))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    reference_fill(__func__, list->placementIds, 3 * sizeof *list->placementIds);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info) {
    if (!device || !info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlPlatformInfo_v1 && info->version != nvmlPlatformInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    reference_fill(__func__, info->ibGuid, sizeof info->ibGuid);
    return NVML_SUCCESS;
}
