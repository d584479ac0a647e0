/* The devices for `aviary devices`. */
#include "server.h"
#include <stdio.h>
#include <string.h>

enum { MOST_LISTED = 64, TEXT_BYTES = 256, UUID_DIGITS = 2 * CL_UUID_SIZE_KHR };

static int has_extension(cl_device_id device, const char *name) {
    char extensions[16384] = "";
    if (clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof extensions - 1, extensions, NULL) != CL_SUCCESS)
        return 0;
    size_t length = strlen(name);
    for (const char *at = extensions; (at = strstr(at, name)); at += length)
        if ((at == extensions || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0))
            return 1;
    return 0;
}

static void read_uuid(cl_device_id device, char text[UUID_DIGITS + 1]) {
    cl_uchar bytes[CL_UUID_SIZE_KHR];
    if (!has_extension(device, "cl_khr_device_uuid") ||
        clGetDeviceInfo(device, CL_DEVICE_UUID_KHR, sizeof bytes, bytes, NULL) != CL_SUCCESS)
        return;
    for (size_t i = 0; i < CL_UUID_SIZE_KHR; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

static void read_address(cl_device_id device, char *text, size_t bytes) {
    cl_device_pci_bus_info_khr pci;
    if (has_extension(device, "cl_khr_pci_bus_info") &&
        clGetDeviceInfo(device, CL_DEVICE_PCI_BUS_INFO_KHR, sizeof pci, &pci, NULL) == CL_SUCCESS)
        snprintf(text, bytes, "%04x:%02x:%02x.%x", pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function);
}

static void list_device(cl_platform_id platform, cl_device_id device, void (*tell)(void *, const struct aviary_device *), void *context) {
    char uuid[UUID_DIGITS + 1] = "", address[TEXT_BYTES] = "", driver[TEXT_BYTES] = "", library[TEXT_BYTES] = "";
    cl_ulong memory = 0;
    cl_bool available = CL_TRUE;
    read_uuid(device, uuid);
    read_address(device, address, sizeof address);
    clGetDeviceInfo(device, CL_DRIVER_VERSION, sizeof driver - 1, driver, NULL);
    clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof library - 1, library, NULL);
    clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL);
    clGetDeviceInfo(device, CL_DEVICE_AVAILABLE, sizeof available, &available, NULL);
    const char *name = opencl_device_name((uint64_t)(uintptr_t)device);
    struct aviary_device listed = {
        .name = name ? name : "unknown", .uuid = uuid, .driver = driver, .library = library, .pci = address, .memory = memory,
        .unhealthy = available ? NULL : "its runtime says that it is not available (CL_DEVICE_AVAILABLE)",
    };
    tell(context, &listed);
}

void aviary_devices(void (*tell)(void *context, const struct aviary_device *device), void *context) {
    cl_platform_id platforms[MOST_LISTED];
    cl_device_id devices[MOST_LISTED];
    cl_uint platform_count = 0;
    if (clGetPlatformIDs(MOST_LISTED, platforms, &platform_count) != CL_SUCCESS)
        return;
    for (cl_uint p = 0; p < platform_count && p < MOST_LISTED; p++) {
        cl_uint count = 0;
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST_LISTED, devices, &count) != CL_SUCCESS)
            continue;
        for (cl_uint d = 0; d < count && d < MOST_LISTED; d++)
            list_device(platforms[p], devices[d], tell, context);
    }
}
