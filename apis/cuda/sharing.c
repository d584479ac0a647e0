/* Memory that other processes of the application use. A descriptor of it is a small file with the name under which the API
 * server offers it: it passes from process to process as the driver's own would. The handles of the older functions hold
 * that name themselves. */
#include "guest.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char MEMORY_MARK[8] = "aviary-m";

struct memory_descriptor {
    char mark[8];
    aviary_memory_name name;
};

struct memory_handle {
    char mark[8];
    aviary_memory_part part;
};
_Static_assert(sizeof(struct memory_handle) <= sizeof(CUipcMemHandle), "a handle has room for a part");

static int new_descriptor(const aviary_memory_name *name) {
    struct memory_descriptor content = {.name = *name};
    memcpy(content.mark, MEMORY_MARK, sizeof content.mark);
    int descriptor = memfd_create("aviary device memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0)
        return -1;
    if (write(descriptor, &content, sizeof content) == (ssize_t)sizeof content
        && fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
        return descriptor;
    close(descriptor);
    return -1;
}

CUresult cuda_export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                     unsigned long long flags) {
    aviary_memory_name name;
    if (!shareable || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult status = aviaryExportMemory(handle, &name);
    if (status != CUDA_SUCCESS)
        return status;
    int descriptor = new_descriptor(&name);
    if (descriptor < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = descriptor;
    return CUDA_SUCCESS;
}

CUresult cuda_import(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type) {
    struct memory_descriptor content;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pread((int)(uintptr_t)os_handle, &content, sizeof content, 0) != (ssize_t)sizeof content
        || memcmp(content.mark, MEMORY_MARK, sizeof content.mark) != 0)
        return CUDA_ERROR_UNKNOWN; /* as NVIDIA's driver says */
    return aviaryImportMemory(handle, &content.name);
}

CUresult cuda_ipc_handle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    struct memory_handle content = {.part = {.bytes = 0}};
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = aviaryShareMemory(pointer, &content.part);
    if (status != CUDA_SUCCESS)
        return status;
    memcpy(content.mark, MEMORY_MARK, sizeof content.mark);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &content, sizeof content);
    return CUDA_SUCCESS;
}

CUresult cuda_ipc_open(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    struct memory_handle content;
    CUdevice device = 0;
    memcpy(&content, &handle, sizeof content);
    if (!pointer || (flags & ~(unsigned int)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        || memcmp(content.mark, MEMORY_MARK, sizeof content.mark) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult status = aviaryOpenMemory(pointer, &device, &content.part);
    if (status == CUDA_SUCCESS)
        cuda_note_opened(*pointer, content.part.bytes, device);
    return status;
}

CUresult cuda_ipc_close(CUdeviceptr pointer) {
    CUresult status = aviaryCloseMemory(pointer);
    if (status == CUDA_SUCCESS)
        cuda_forget_opened(pointer);
    return status;
}
