/* Memory and events that other processes of the application use. A descriptor of memory is a small file with the name under
 * which the API server offers it: it passes from process to process as the driver's own would. The handles of the older
 * functions, and those of events, hold that name themselves. */
#include "guest/ranges.h"
#include <string.h>

static const char MEMORY_MARK[8] = "aviary-m", EVENT_MARK[8] = "aviary-e";

struct memory_descriptor {
    char mark[8];
    aviary_shared_name name;
};

struct memory_handle {
    char mark[8];
    aviary_memory_part part;
};
_Static_assert(sizeof(struct memory_handle) <= sizeof(CUipcMemHandle), "a handle has room for a part");

struct event_handle {
    char mark[8];
    aviary_shared_name name;
};
_Static_assert(sizeof(struct event_handle) <= sizeof(CUipcEventHandle), "a handle has room for a name");

static int new_descriptor(const aviary_shared_name *name) {
    struct memory_descriptor content = {.name = *name};
    memcpy(content.mark, MEMORY_MARK, sizeof content.mark);
    return cuda_new_sealed_file("aviary device memory", &content, sizeof content);
}

CUresult cuda_export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                     unsigned long long flags) {
    aviary_shared_name name;
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
    if (!cuda_read_sealed_file((int)(uintptr_t)os_handle, &content, sizeof content)
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

/* ---- Events ----------------------------------------------------------------------------------- */

CUresult cuda_event_handle(CUipcEventHandle *handle, CUevent event) {
    struct event_handle content;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = aviaryShareEvent(event, &content.name);
    if (status != CUDA_SUCCESS)
        return status;
    memcpy(content.mark, EVENT_MARK, sizeof content.mark);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &content, sizeof content);
    return CUDA_SUCCESS;
}

CUresult cuda_open_event(CUevent *event, CUipcEventHandle handle) {
    struct event_handle content;
    memcpy(&content, &handle, sizeof content);
    if (!event)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (memcmp(content.mark, EVENT_MARK, sizeof content.mark) != 0)
        return CUDA_ERROR_MAP_FAILED; /* as NVIDIA's driver says */
    return aviaryOpenEvent(event, &content.name);
}
