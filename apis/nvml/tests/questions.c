/* Asks what tools ask and prints the answers; `none` as argument: every question is refused, as without a driver; `own`: of the
 * first device instead of the second. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int none;

static void ask(const char *what, nvmlReturn_t result) {
    const char *text = nvmlErrorString(result);
    printf("%s: %d %s\n", what, (int)result, text ? text : "(no text)");
    if (none && result != NVML_ERROR_DRIVER_NOT_LOADED && result != NVML_ERROR_INVALID_ARGUMENT) {
        puts("FAIL: answered without a server");
        exit(1);
    }
}
#define ASK(call) ask(#call, call)

int main(int count, char **arguments) {
    char name[64] = "", small[3], version[80] = "";
    unsigned int devices = 0, processes = 8, value = 0;
    int cuda = 0, major = 0, minor = 0;
    nvmlDevice_t device = NULL, same = NULL;
    nvmlMemory_t memory = {0};
    nvmlMemory_v2_t memory2 = {.version = nvmlMemory_v2}, wrong = {.version = 1};
    nvmlPciInfo_t pci = {0}, other = {0}, older = {.busId = "mine"};
    nvmlFieldValue_t fields[2] = {{.fieldId = 4}, {.fieldId = 5}};
    nvmlSystemConfComputeSettings_t settings = {.version = nvmlSystemConfComputeSettings_v1};
    nvmlProcessInfo_t running[8];
    nvmlUtilization_t rates;

    none = count > 1 && strcmp(arguments[1], "none") == 0;
    unsigned int number = count > 1 && strcmp(arguments[1], "own") == 0 ? 0 : 1, index = 9;
    ASK(nvmlInit_v2());
    ASK(nvmlSystemGetDriverVersion(version, sizeof version));
    ASK(nvmlSystemGetCudaDriverVersion_v2(&cuda));
    ASK(nvmlDeviceGetCount_v2(&devices));
    printf("version '%s', CUDA %d, %u devices\n", version, cuda, devices);
    ASK(nvmlDeviceGetHandleByIndex_v2(9, &device));
    ASK(nvmlDeviceGetHandleByIndex_v2(number, &device));
    ASK(nvmlDeviceGetIndex(device, &index));
    ASK(nvmlDeviceGetHandleByUUID("GPU-1", &same));
    ASK(nvmlDeviceGetHandleByUUID("GPU-9", &same));
    ASK(nvmlDeviceGetName(device, name, sizeof name));
    ASK(nvmlDeviceGetName(device, small, sizeof small));
    ASK(nvmlDeviceGetMemoryInfo(device, &memory));
    ASK(nvmlDeviceGetMemoryInfo_v2(device, &memory2));
    ASK(nvmlDeviceGetMemoryInfo_v2(device, &wrong));
    ASK(nvmlDeviceGetPciInfo_v3(device, &pci));
    ASK(nvmlDeviceGetNvLinkCapability(device, 1, NVML_NVLINK_CAP_P2P_SUPPORTED, &value));
    ASK(nvmlDeviceGetNvLinkRemotePciInfo_v2(device, 1, &other));
    ASK(nvmlDeviceGetNvLinkRemotePciInfo(device, 1, &older));
    ASK(nvmlDeviceGetFieldValues(device, 2, fields));
    ASK(nvmlSystemGetConfComputeSettings(&settings));
    printf("link 1: %u, to %s, kept: %s; fields %u %u; %u\n", value, other.busId, older.busId, fields[0].value.uiVal,
           fields[1].value.uiVal, settings.ccFeature);
    ASK(nvmlDeviceGetComputeRunningProcesses_v3(device, &processes, running));
    printf("the same device: %d, number %u, '%s', %llu bytes (%llu free, %llu used), %llu, %s, %u processes\n", device == same, index, name, memory.total,
           memory.free, memory.used, memory2.total, pci.busId, none ? 0 : processes);
    if (none) {
        ASK(nvmlDeviceGetUtilizationRates(device, &rates));
        ASK(nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value));
        ASK(nvmlDeviceGetPowerUsage(device, &value));
        ASK(nvmlDeviceGetCudaComputeCapability(device, &major, &minor));
    }
    ASK(nvmlShutdown());
    ASK(nvmlShutdown());
    puts("ok questions");
    return 0;
}
