/* This API's part of tests/pointers: objects to call its functions with, and a call that its API server answers. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>

static void addresses_of_the_api(void) {}

static int setup(void) {
    nvmlDevice_t device;
    nvmlEventSet_t set;
    nvmlGpmSample_t sample;
    nvmlUnit_t unit;
    nvmlGpuInstance_t instances[32];
    nvmlComputeInstance_t parts[32];
    unsigned int count = 0;
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS ||
        nvmlEventSetCreate(&set) != NVML_SUCCESS || nvmlGpmSampleAlloc(&sample) != NVML_SUCCESS ||
        nvmlUnitGetHandleByIndex(0, &unit) != NVML_SUCCESS ||
        nvmlDeviceGetGpuInstances(device, 0, instances, &count) != NVML_SUCCESS ||
        nvmlGpuInstanceGetComputeInstances(instances[0], 0, parts, &count) != NVML_SUCCESS)
        return 0;
    known("nvmlDevice_t", (uint64_t)device);
    known("nvmlEventSet_t", (uint64_t)set);
    known("nvmlGpmSample_t", (uint64_t)sample);
    known("nvmlUnit_t", (uint64_t)unit);
    known("nvmlGpuInstance_t", (uint64_t)instances[0]);
    known("nvmlComputeInstance_t", (uint64_t)parts[0]);
    return 1;
}

static void each_thread(void) {}

static int alive(void) {
    unsigned int count;
    return nvmlDeviceGetCount_v2(&count) != NVML_ERROR_DRIVER_NOT_LOADED;
}
