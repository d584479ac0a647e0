/* A program for drivers of several ages: newer functions that older ones can stand in for, and one that nothing can, twice. */
#include <nvml.h>
#include <stdio.h>

int main(void) {
    nvmlDevice_t device = NULL;
    nvmlTemperature_t temperature = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU};
    nvmlMemory_v2_t memory = {.version = sizeof memory | 2u << 24};
    nvmlMemory_t older = {0};
    unsigned int degrees = 0, interrupt = 0;
    nvmlInit_v2();
    nvmlDeviceGetHandleByIndex_v2(0, &device);
    printf("temperature: %d\n", (int)nvmlDeviceGetTemperatureV(device, &temperature));
    printf("older temperature: %d\n", (int)nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &degrees));
    printf("memory: %d\n", (int)nvmlDeviceGetMemoryInfo_v2(device, &memory));
    printf("older memory: %d\n", (int)nvmlDeviceGetMemoryInfo(device, &older));
    printf("the same: %d %d\n", temperature.temperature == (int)degrees, memory.total == older.total && memory.free == older.free);
    nvmlDeviceGetIrqNum(device, &interrupt);
    printf("interrupt: %d\n", (int)nvmlDeviceGetIrqNum(device, &interrupt));
    nvmlShutdown();
    return 0;
}
