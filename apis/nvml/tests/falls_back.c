/* A program for drivers of several ages: it asks the newest function first, twice, and then older ones. */
#include <nvml.h>
#include <stdio.h>

int main(void) {
    nvmlDevice_t device = NULL;
    nvmlTemperature_t temperature = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU};
    unsigned int degrees = 0;
    nvmlInit_v2();
    nvmlDeviceGetHandleByIndex_v2(0, &device);
    nvmlDeviceGetTemperatureV(device, &temperature);
    printf("temperature: %d\n", (int)nvmlDeviceGetTemperatureV(device, &temperature));
    printf("older temperature: %d\n", (int)nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &degrees));
    nvmlShutdown();
    return 0;
}
