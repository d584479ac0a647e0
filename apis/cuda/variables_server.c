/* The server's side of a module's managed variables: read and written here for the application, as the driver allows every
 * processor to. The driver says what is such memory: nothing else of this process is. */
#include <stdint.h>
#include <string.h>

static int is_managed(CUdeviceptr pointer) {
    unsigned int managed = 0;
    return cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) == CUDA_SUCCESS && managed;
}

/* Whether all of it lies in one piece of managed memory, which the processor may touch while kernels run. */
static int is_managed_range(CUdeviceptr pointer, size_t bytes) {
    CUdeviceptr base = 0;
    size_t size = 0;
    int device = 0, concurrent = 0;
    return is_managed(pointer) && cuMemGetAddressRange_v2(&base, &size, pointer) == CUDA_SUCCESS && pointer >= base
           && pointer - base <= size && bytes <= size - (pointer - base)
           && cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS
           && cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device < 0 ? 0 : device) == CUDA_SUCCESS
           && concurrent;
}

static CUresult read_variable(CUdeviceptr pointer, void *to, size_t bytes) {
    if (!to || !is_managed_range(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, (const void *)(uintptr_t)pointer, bytes);
    return CUDA_SUCCESS;
}

void *cuda_read_variable_function(void) {
    return (void *)read_variable;
}

static CUresult write_variable(CUdeviceptr pointer, const void *from, size_t bytes) {
    if (!from || !is_managed_range(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy((void *)(uintptr_t)pointer, from, bytes);
    return CUDA_SUCCESS;
}

void *cuda_write_variable_function(void) {
    return (void *)write_variable;
}

static CUresult library_managed(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes) {
    return cuLibraryGetManaged(pointer, bytes, library, name);
}

void *cuda_library_managed_function(void) {
    return (void *)library_managed;
}

static CUresult module_global(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed) {
    CUresult status = managed ? cuModuleGetGlobal_v2(pointer, bytes, module, name) : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS)
        *managed = pointer && is_managed(*pointer);
    return status;
}

void *cuda_module_global_function(void) {
    return (void *)module_global;
}

static CUresult library_global(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed) {
    CUresult status = managed ? cuLibraryGetGlobal(pointer, bytes, library, name) : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS)
        *managed = pointer && is_managed(*pointer);
    return status;
}

void *cuda_library_global_function(void) {
    return (void *)library_global;
}
