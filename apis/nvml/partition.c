/* Lists of parts of a device, whose length the caller does not say: the library writes into room enough for all, and the guest gets
 * as many as its array is described with. */
#include "nvml_server.h"
#include <string.h>

enum { MOST = 256 };

/* Copies what was found; more than the caller's array can have is an error. */
static nvmlReturn_t hand_out(void *to, unsigned int room, const void *found, size_t bytes, unsigned int number,
                             unsigned int *count) {
    *count = number;
    if (!to)
        return NVML_SUCCESS;
    if (number > room) {
        *count = 0;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(to, found, number * bytes);
    return NVML_SUCCESS;
}

static nvmlReturn_t gpu_placements(nvmlDevice_t device, unsigned int profile, nvmlGpuInstancePlacement_t *placements,
                                   unsigned int *count) {
    nvmlGpuInstancePlacement_t found[MOST] = {{0}};
    unsigned int number = MOST;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile, placements ? found : NULL, &number);
    return result == NVML_SUCCESS ? hand_out(placements, NVML_PLACEMENTS, found, sizeof *found, number, count) : result;
}

void *nvml_gpu_placements_function(void) {
    return (void *)gpu_placements;
}

static nvmlReturn_t compute_placements(nvmlGpuInstance_t instance, unsigned int profile, nvmlComputeInstancePlacement_t *placements,
                                       unsigned int *count) {
    nvmlComputeInstancePlacement_t found[MOST] = {{0}};
    unsigned int number = MOST;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result =
        nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, profile, placements ? found : NULL, &number);
    return result == NVML_SUCCESS ? hand_out(placements, NVML_PLACEMENTS, found, sizeof *found, number, count) : result;
}

void *nvml_compute_placements_function(void) {
    return (void *)compute_placements;
}

static nvmlReturn_t gpu_instances(nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *instances, unsigned int *count) {
    nvmlGpuInstance_t found[MOST] = {0};
    unsigned int number = 0;
    if (!instances || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlDeviceGetGpuInstances(device, profile, found, &number);
    return result == NVML_SUCCESS ? hand_out(instances, NVML_INSTANCES, found, sizeof *found, number, count) : result;
}

void *nvml_gpu_instances_function(void) {
    return (void *)gpu_instances;
}

static nvmlReturn_t compute_instances(nvmlGpuInstance_t instance, unsigned int profile, nvmlComputeInstance_t *instances,
                                      unsigned int *count) {
    nvmlComputeInstance_t found[MOST] = {0};
    unsigned int number = 0;
    if (!instances || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlGpuInstanceGetComputeInstances(instance, profile, found, &number);
    return result == NVML_SUCCESS ? hand_out(instances, NVML_INSTANCES, found, sizeof *found, number, count) : result;
}

void *nvml_compute_instances_function(void) {
    return (void *)compute_instances;
}
