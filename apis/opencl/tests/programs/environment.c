/* Variables that steer the runtime, set by the program itself before its first call. */
#include "common.h"

int main(void) {
    /* Three devices of PoCL with small work-groups; other runtimes do not look at these. */
    setenv("POCL_DEVICES", "basic pthread basic", 1);
    setenv("POCL_MAX_WORK_GROUP_SIZE", "64", 1);
    struct device d = open_device(0);
    cl_uint devices = 0;
    size_t largest = 0;
    MUST(clGetDeviceIDs(d.platform, CL_DEVICE_TYPE_ALL, 0, NULL, &devices));
    MUST(clGetDeviceInfo(d.device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof largest, &largest, NULL));
    printf("devices %u, work-groups of at most %zu\n", devices, largest);
    close_device(&d);
    return 0;
}
