/* The queries of PyTorch and NCCL to NVML, answered for the devices of the reference driver: how many there are, which one it is, who
 * uses it when memory is out, whether they reach each other. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct nvmlDevice_st {
    unsigned index;
} devices[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

static unsigned device_count(void)
{
    const char *count = getenv("REFCUDA_DEVICES");

    return count && atoi(count) > 0 && atoi(count) <= 8 ? (unsigned)atoi(count) : 1;
}

static nvmlReturn_t text(char *to, unsigned int length, const char *from)
{
    if (strlen(from) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

static nvmlReturn_t find(unsigned index, nvmlDevice_t *found)
{
    if (index >= device_count())
        return NVML_ERROR_NOT_FOUND;
    *found = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { return flags ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) { return text(version, length, "580.0"); }

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = device_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *found) { return find(index, found); }

/* As the driver says it: with a domain of four digits, which PyTorch writes with eight. */
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *found)
{
    unsigned domain, bus, slot;

    return sscanf(id, "%x:%x:%x", &domain, &bus, &slot) == 3 && !domain && bus >= 0x10 && !slot ? find(bus - 0x10, found)
                                                                                             : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t asked, char *name, unsigned int length)
{
    (void)asked;
    return text(name, length, "Aviary Reference Device");
}

/* AviaryReference and a zero, as the driver's identifier. */
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t asked, char *uuid, unsigned int length)
{
    char name[48];

    snprintf(name, sizeof(name), "GPU-41766961-7279-5265-6665-72656e6365%02x", asked->index);
    return text(uuid, length, name);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t asked, nvmlMemory_t *memory)
{
    (void)asked;
    *memory = (nvmlMemory_t){.total = 80ull << 30, .free = 80ull << 30};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t asked, unsigned int *count, nvmlProcessInfo_t *processes)
{
    (void)asked;
    (void)processes;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t asked, unsigned int *count, nvmlProcessInfo_v1_t *processes)
{
    (void)processes;
    return nvmlDeviceGetComputeRunningProcesses_v3(asked, count, NULL);
}

/* PyTorch wants these to be there as soon as it asks for anything. */
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t asked, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    (void)asked;
    (void)link;
    (void)type;
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t asked, unsigned int link, nvmlPciInfo_t *place)
{
    (void)asked;
    (void)link;
    (void)place;
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t asked, nvmlGpuFabricInfoV_t *fabric)
{
    (void)asked;
    (void)fabric;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* ---- What NCCL asks: every device reaches every other one, and has no links of its own ---- */

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t asked, unsigned int *index)
{
    *index = asked->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t asked, int *major, int *minor)
{
    (void)asked;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *status)
{
    (void)one;
    (void)other;
    (void)what;
    *status = NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t asked, unsigned int link, nvmlEnableState_t *active)
{
    (void)asked;
    (void)link;
    *active = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *settings)
{
    settings->ccFeature = 0;
    settings->multiGpuMode = 0;
    return NVML_SUCCESS;
}
