/* One call of each kind that the comparison of all functions does not show: versions, lists that do not fit, objects, values that an
 * API server must not believe. Prints one line each. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *what, int value) {
    printf("%s: %d\n", what, value);
}

static void versions(nvmlDevice_t device) {
    nvmlPlatformInfo_v1_t older = {.version = nvmlPlatformInfo_v1};
    nvmlPlatformInfo_v2_t newer = {.version = nvmlPlatformInfo_v2};
    nvmlPlatformInfo_v2_t wrong = {.version = nvmlPlatformInfo_v2 + (1 << 24)};
    /* The older one is shorter: what lies behind it is not the library's. */
    struct {
        nvmlVgpuPlacementList_v1_t list;
        unsigned int behind[16];
    } placements;
    unsigned int ids[8] = {0};
    memset(&placements, 0x5a, sizeof placements);
    placements.list = (nvmlVgpuPlacementList_v1_t){.version = nvmlVgpuPlacementList_v1, .count = 8, .placementIds = ids};
    say("newer version", nvmlDeviceGetPlatformInfo(device, &newer));
    say("older version", nvmlDeviceGetPlatformInfo(device, (nvmlPlatformInfo_t *)&older));
    say("unknown version", nvmlDeviceGetPlatformInfo(device, &wrong));
    say("older list", nvmlDeviceGetVgpuTypeSupportedPlacements(device, 1, (nvmlVgpuPlacementList_t *)&placements.list));
    say("its length", (int)placements.list.count);
    say("behind it", placements.behind[0] == 0x5a5a5a5a);
}

static void lists(nvmlDevice_t device) {
    unsigned int count = 0, clocks[8] = {0};
    say("number", nvmlDeviceGetSupportedMemoryClocks(device, &count, NULL));
    say("of elements", (int)count);
    count = 2;
    say("too small", nvmlDeviceGetSupportedMemoryClocks(device, &count, clocks));
    say("needed", (int)count);
    say("untouched", clocks[0] == 0);
    count = 8;
    say("large enough", nvmlDeviceGetSupportedMemoryClocks(device, &count, clocks));
    say("written", (int)count);
    say("behind them", clocks[3] == 0 && clocks[2] != 0);
}

static void objects(nvmlDevice_t device) {
    nvmlEventSet_t set = NULL, none = NULL;
    nvmlEventData_t event = {0};
    nvmlGpmSample_t samples[2] = {NULL, NULL};
    nvmlDevice_t first = NULL;
    nvmlGpmMetricsGet_t *metrics = calloc(1, sizeof *metrics);
    say("set", nvmlEventSetCreate(&set));
    say("register", nvmlDeviceRegisterEvents(device, nvmlEventTypeXidCriticalError, set));
    say("no event", nvmlEventSetWait_v2(set, &event, 0));
    say("event", nvmlEventSetWait_v2(set, &event, 1000));
    nvmlDeviceGetHandleByIndex_v2(0, &first);
    say("of the first device", event.device == first && event.eventData == 31);
    say("freed", nvmlEventSetFree(set));
    say("freed again", nvmlEventSetFree(set));
    say("no set", nvmlEventSetWait_v2(none, &event, 0));
    say("sample", nvmlGpmSampleAlloc(&samples[0]) || nvmlGpmSampleAlloc(&samples[1]));
    metrics->version = NVML_GPM_METRICS_GET_VERSION;
    metrics->numMetrics = 2;
    metrics->sample1 = samples[0];
    metrics->sample2 = samples[1];
    metrics->metrics[0].metricId = 2;
    metrics->metrics[1].metricId = 10;
    say("metrics", nvmlGpmMetricsGet(metrics));
    printf("%.1f %.1f %s, %s, %s\n", metrics->metrics[0].value, metrics->metrics[1].value,
           metrics->metrics[1].metricInfo.shortName, metrics->metrics[1].metricInfo.longName,
           metrics->metrics[1].metricInfo.unit);
    metrics->numMetrics = 4096;
    say("too many metrics", nvmlGpmMetricsGet(metrics));
    say("sample freed", nvmlGpmSampleFree(samples[0]));
    metrics->numMetrics = 1;
    say("metrics of a freed sample", nvmlGpmMetricsGet(metrics));
    free(metrics);
}

static void changes(nvmlDevice_t device) {
    nvmlEnableState_t mode = 7;
    say("change", nvmlDeviceSetPersistenceMode(device, NVML_FEATURE_ENABLED));
    nvmlDeviceGetPersistenceMode(device, &mode);
    say("mode", (int)mode);
    say("limit", nvmlDeviceSetPowerManagementLimit(device, 100000));
}

int main(int count, char **arguments) {
    nvmlDevice_t device = NULL;
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(1, &device) != NVML_SUCCESS)
        return 1;
    if (count < 2 || strcmp(arguments[1], "changes") != 0) {
        versions(device);
        lists(device);
        objects(device);
    }
    changes(device);
    say("shutdown", nvmlShutdown());
    puts("ok kinds");
    return 0;
}
