/* Calls every function of NVML once and prints what it answers and writes, so that two runs can be compared. Handles are
 * hidden: two processes have other numbers for the same object. */
#include "every.h"
#include <stdio.h>
#include <stdint.h>
#include <string.h>

unsigned char room[8][1 << 16];
nvmlDevice_t device;
nvmlEventSet_t set;
nvmlGpmSample_t sample;
nvmlUnit_t other_nvmlUnit_t;
nvmlGpuInstance_t other_nvmlGpuInstance_t;
nvmlComputeInstance_t other_nvmlComputeInstance_t;

void clear_room(void) {
    memset(room, 0, sizeof room);
}

void hide_objects(unsigned char *list) {
    for (size_t i = 0; i < 64; i++) {
        uint64_t word;
        memcpy(&word, list + 8 * i, 8);
        memset(list + 8 * i, word ? 0x77 : 0, 8);
    }
}

/* The address of a list in a structure, which differs from run to run. */
static void hide_lists(unsigned char *structure) {
    uintptr_t list = (uintptr_t)room[7];
    for (size_t i = 0; i + 8 <= sizeof room[0]; i += 4)
        if (memcmp(structure + i, &list, sizeof list) == 0)
            memset(structure + i, 0x66, sizeof list);
}

void report(const char *name, nvmlReturn_t result) {
    printf("%s %d", name, (int)result);
    for (int i = 0; i < 8; i++) {
        int last = -1;
        hide_lists(room[i]);
        for (int j = 0; j < 4096; j++)
            if (room[i][j])
                last = j;
        if (last >= 0)
            printf(" %d:", i);
        for (int j = 0; j <= last; j++)
            printf("%02x", room[i][j]);
    }
    puts("");
    fflush(stdout);
}

/* Of kinds whose objects a first call hands out. */
static void find_objects(void) {
    unsigned int count = 8;
    nvmlGpuInstance_t instances[32];
    nvmlComputeInstance_t parts[32];
    nvmlUnitGetHandleByIndex(0, &other_nvmlUnit_t);
    if (nvmlDeviceGetGpuInstances(device, 1, instances, &count) == NVML_SUCCESS && count > 0)
        other_nvmlGpuInstance_t = instances[0];
    count = 8;
    if (nvmlGpuInstanceGetComputeInstances(other_nvmlGpuInstance_t, 1, parts, &count) == NVML_SUCCESS && count > 0)
        other_nvmlComputeInstance_t = parts[0];
}

int main(void) {
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(1, &device) != NVML_SUCCESS)
        return 1;
    nvmlEventSetCreate(&set);
    nvmlGpmSampleAlloc(&sample);
    find_objects();
    call_every_function();
    puts("ok every");
    return 0;
}
