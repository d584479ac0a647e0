/* The functions of cl_intel_unified_shared_memory, found by name as programs find them. */
#include "common.h"

#define USM_FUNCTIONS(one)                                                                                                     \
    one(clHostMemAllocINTEL) one(clDeviceMemAllocINTEL) one(clSharedMemAllocINTEL) one(clMemFreeINTEL)                         \
    one(clMemBlockingFreeINTEL) one(clGetMemAllocInfoINTEL) one(clSetKernelArgMemPointerINTEL) one(clEnqueueMemFillINTEL)      \
    one(clEnqueueMemcpyINTEL) one(clEnqueueMemAdviseINTEL) one(clEnqueueMigrateMemINTEL) one(clEnqueueMemsetINTEL)

#define DECLARE(name) static name##_fn name##_;
USM_FUNCTIONS(DECLARE)

static inline struct device open_usm_device(cl_command_queue_properties properties) {
    struct device d = open_device(properties);
#define FIND(name)                                                                                                             \
    name##_ = (name##_fn)clGetExtensionFunctionAddressForPlatform(d.platform, #name);                                          \
    if (!name##_) {                                                                                                            \
        printf("no %s\n", #name);                                                                                              \
        exit(0);                                                                                                               \
    }
    USM_FUNCTIONS(FIND)
    return d;
}
