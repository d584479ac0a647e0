/* This API's part of tests/pointers: objects to call its functions with, and a question that its API server answers. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>

static void addresses_of_the_api(void) {}

static int setup(void) {
    nvmlDevice_t device;
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS)
        return 0;
    known("nvmlDevice_t", (uint64_t)device);
    return 1;
}

static void each_thread(void) {}

static int alive(void) {
    unsigned int count;
    return nvmlDeviceGetCount_v2(&count) != NVML_ERROR_DRIVER_NOT_LOADED;
}
