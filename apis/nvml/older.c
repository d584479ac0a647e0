/* Newer functions that older drivers lack, answered by the older ones. Tools look for the newer ones by dlsym, which finds them in the
 * guest library whatever the driver has, and do not try again with the older ones once they have found them. */
#include "nvml_server.h"
#include <aviary/server.h>

nvmlReturn_t nvml_memory_info_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t older = {0};
    if (aviary_function("nvmlDeviceGetMemoryInfo_v2") || !memory)
        return nvmlDeviceGetMemoryInfo_v2(device, memory);
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &older);
    if (result == NVML_SUCCESS) {
        memory->total = older.total;
        memory->free = older.free;
        memory->used = older.used;
        /* The older one counts it as used. */
        memory->reserved = 0;
    }
    return result;
}

static nvmlReturn_t temperature(nvmlDevice_t device, nvmlTemperature_t *told) {
    unsigned int degrees = 0;
    if (aviary_function("nvmlDeviceGetTemperatureV") || !told)
        return nvmlDeviceGetTemperatureV(device, told);
    nvmlReturn_t result = nvmlDeviceGetTemperature(device, told->sensorType, &degrees);
    if (result == NVML_SUCCESS)
        told->temperature = (int)degrees;
    return result;
}

void *nvml_temperature_function(void) {
    return (void *)temperature;
}
