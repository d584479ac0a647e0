/* Finding functions by name and version, and what a device says of itself. */
#include "common.h"

static void find(const char *name, int version, cuuint64_t flags, const void *expected)
{
    void *function = NULL;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)-1;

    cuGetProcAddress(name, &function, version, flags, &status);
    printf("%s %d %d: status %d, %s", name, version, (int)flags, status, function ? "found" : "nothing");
    if (expected)
        printf(", the one: %d", function == expected);
    puts("");
}

int main(void)
{
    int version, count, value;
    size_t total;
    char name[100];
    const char *text;
    CUuuid uuid;
    CUdevice device;
    CUmoduleLoadingMode mode;

    MUST(cuDriverGetVersion(&version));
    printf("version at least 13000: %d\n", version >= 13000);
    find("cuMemAlloc", 13000, 0, NULL);
    find("cuMemAlloc", 2000, 0, NULL);
    find("cuMemcpyHtoDAsync", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL);
    find("cuStreamGetCaptureInfo", 11030, 0, NULL);
    find("cuStreamGetCaptureInfo", 13000, 0, NULL);
    find("cuLibraryLoadData", 11000, 0, NULL);
    find("cuNoSuchFunction", 13000, 0, NULL);
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&count));
    CHECK(count >= 1);
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetName(name, sizeof(name), device));
    MUST(cuDeviceTotalMem(&total, device));
    MUST(cuDeviceGetUuid(&uuid, device));
    CHECK(name[0] && total > 0);
    for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; attribute++) {
        CUresult result = cuDeviceGetAttribute(&value, (CUdevice_attribute)attribute, device);
        if (result != CUDA_SUCCESS)
            printf("attribute %d: %s\n", attribute, error_name(result));
    }
    MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    printf("warps of %d\n", value);
    MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    printf("major %d\n", value);
    MUST(cuModuleGetLoadingMode(&mode));
    printf("lazy: %d\n", mode == CU_MODULE_LAZY_LOADING);
    for (CUresult error = CUDA_SUCCESS; error <= CUDA_ERROR_UNKNOWN; error = (CUresult)(error + 1))
        if (cuGetErrorName(error, &text) == CUDA_SUCCESS) {
            const char *long_text;
            MUST(cuGetErrorString(error, &long_text));
            CHECK(long_text && *long_text);
            if (error < 4 || error == 400 || error == 700)
                printf("%d %s: %s\n", error, text, long_text);
        }
    puts("ok functions");
    return 0;
}
