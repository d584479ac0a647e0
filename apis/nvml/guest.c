/* Answers that the guest library gives by itself. */
#include "nvml_types.h"
#include <aviary/guest.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *nvml_error_text(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires restart";
    case NVML_ERROR_OPERATING_SYSTEM: return "The operating system has blocked the request.";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_NOT_READY: return "System is not in ready state";
    default: return "Unknown Error";
    }
}

/* A feature that the device does not have for a guest. A device is known only once an API server was reached. */
nvmlReturn_t nvml_not_supported(nvmlDevice_t device) {
    if (!aviary_connected())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return aviary_is_handle(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvml_no_vgpu(void) {
    return aviary_connected() ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_DRIVER_NOT_LOADED;
}

/* ---- The application's own threads and processes ------------------------------------------------- */

/* The node's numbers of processors are the application's only on the same machine: elsewhere none may fit. */
nvmlReturn_t nvml_set_affinity(nvmlDevice_t device) {
    cpu_set_t processors;
    memset(&processors, 0, sizeof processors);
    unsigned long *words = (unsigned long *)(void *)&processors;
    nvmlReturn_t result = nvmlDeviceGetCpuAffinity(device, sizeof processors / sizeof *words, words);
    if (result != NVML_SUCCESS)
        return result;
    return sched_setaffinity(0, sizeof processors, &processors) == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvml_clear_affinity(nvmlDevice_t device) {
    cpu_set_t processors;
    if (!aviary_connected())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!aviary_is_handle(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(&processors, 0xff, sizeof processors);
    return sched_setaffinity(0, sizeof processors, &processors) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* The name that the process was started with, cut to the caller's room. */
nvmlReturn_t nvml_process_name(unsigned int process, char *name, unsigned int length) {
    char path[32];
    if (!aviary_connected())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!name || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", process);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t bytes = fread(name, 1, length - 1, file);
    fclose(file);
    name[bytes] = 0;
    return NVML_SUCCESS;
}
