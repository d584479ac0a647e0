/* State that the library keeps of a process: how often it is initialized, and event sets. Prints results, the same wherever the
 * session is. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stdio.h>

static unsigned int devices(void) {
    unsigned int count = 0;
    return nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS ? count : 0;
}

int main(void) {
    nvmlDevice_t first = NULL, second = NULL;
    nvmlEventSet_t set = NULL;
    nvmlEventData_t event = {0};
    int result = nvmlInit_v2();
    printf("init: %d %d devices %u\n", result, nvmlDeviceGetHandleByIndex_v2(0, &first), devices());
    printf("register: %d %d\n", nvmlEventSetCreate(&set), nvmlDeviceRegisterEvents(first, nvmlEventTypeXidCriticalError, set));
    /* Another library of the process initializes, later than handles were asked for. */
    printf("again: %d %d\n", nvmlInit_v2(), nvmlInitWithFlags(0));
    printf("shut down: %d %d devices %u\n", nvmlShutdown(), nvmlShutdown(), devices());
    printf("other handle: %d\n", nvmlDeviceGetHandleByUUID("GPU-2", &second));
    printf("no event: %d\n", nvmlEventSetWait_v2(set, &event, 0));
    result = nvmlEventSetWait_v2(set, &event, 1000);
    printf("event: %d of the first device %d\n", result, event.device == first);
    result = nvmlShutdown();
    printf("last: %d devices %u, again %d\n", result, devices(), nvmlShutdown());
    result = nvmlInitWithFlags(0);
    printf("anew: %d devices %u\n", result, devices());
    printf("shutdown: %d\n", nvmlShutdown());
    return 0;
}
