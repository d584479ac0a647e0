/* The devices for `aviary devices`. Whether one is healthy NVML says. */
#include "server.h"
#include <stdio.h>

enum { UUID_TEXT = sizeof "GPU-00112233-4455-6677-8899-aabbccddeeff", ADDRESS_TEXT = 32 };

void aviary_devices(void (*tell)(void *context, const struct aviary_device *device), void *context) {
    char why[128], library[32] = "";
    int count = 0, version = 0;
    CUresult result = cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE)
        return;
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS) {
        snprintf(why, sizeof why, "CUDA's driver does not start (error %d)", (int)result);
        tell(context, &(struct aviary_device){.unhealthy = why});
        return;
    }
    if (cuDriverGetVersion(&version) == CUDA_SUCCESS)
        snprintf(library, sizeof library, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    for (CUdevice device = 0; device < count; device++) {
        char uuid[UUID_TEXT] = "", address[ADDRESS_TEXT] = "";
        CUuuid id;
        size_t memory = 0;
        const char *name = cuda_ordinal_name(cuda_ordinal_of_device(device), 0);
        if (cuDeviceGetUuid_v2(&id, device) == CUDA_SUCCESS) {
            const unsigned char *b = (const unsigned char *)id.bytes;
            snprintf(uuid, sizeof uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
                     b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
        }
        if (cuDeviceGetPCIBusId(address, sizeof address, device) != CUDA_SUCCESS)
            address[0] = 0;
        cuDeviceTotalMem_v2(&memory, device);
        struct aviary_device listed = {
            .name = name ? name : "unknown", .uuid = uuid, .library = library, .pci = address, .memory = memory};
        tell(context, &listed);
    }
}
