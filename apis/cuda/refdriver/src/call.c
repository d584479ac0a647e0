#include "call.h"

#include <string.h>

#include "driver.h"
#include "errors.h"
#include "memory.h"
#include "symbols.h"
#include "guest/export_tables.h"

pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t driver_changed = PTHREAD_COND_INITIALIZER;
_Thread_local CUstream default_stream = CU_STREAM_LEGACY;
_Thread_local CUcontext ended_context;

static bool initialized;

CUresult call_begin(unsigned flags)
{
    if (!(flags & CALL_UNLOCKED))
        pthread_mutex_lock(&driver_lock);
    default_stream = flags & CALL_PER_THREAD ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    return initialized || flags & CALL_ANYTIME ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

void call_end(unsigned flags)
{
    if (!(flags & CALL_UNLOCKED))
        pthread_mutex_unlock(&driver_lock);
    if (ended_context) {
        CUcontext ended = ended_context;

        /* Its destructors call the driver, and so come here again. */
        ended_context = NULL;
        export_tables_context_ended(ended);
    }
}

const char *error_name(CUresult error)
{
    for (const struct error_name *known = error_names; known->name; known++)
        if (known->value == (int)error)
            return known->name;
    return NULL;
}

CUresult cuInit(unsigned int flags)
{
    CUresult result;

    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (initialized)
        return CUDA_SUCCESS;
    result = devices_start();
    if (result == CUDA_SUCCESS)
        result = memory_start();
    initialized = result == CUDA_SUCCESS;
    return result;
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = error_name(error);
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    static const struct {
        CUresult error;
        const char *text;
    } known[] = {
        {CUDA_SUCCESS, "no error"},
        {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
        {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
        {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
        {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
        {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
        {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
        {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
        {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
        {CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
        {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
        {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
        {CUDA_ERROR_NOT_READY, "device not ready"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
        {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
        {CUDA_ERROR_UNKNOWN, "unknown error"},
    };
    const char *name;

    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].error == error)
            *text = known[i].text;
    name = error_name(error);
    if (!*text)
        *text = name;
    return name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A variant that the asked version does not have yet is not given: its parameters may differ. */
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    const struct symbol *best = NULL;
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, exists = false;

    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct symbol *symbol = symbols; symbol->name; symbol++) {
        if (strcmp(symbol->name, name) != 0)
            continue;
        exists = true;
        if (symbol->version > version || (symbol->per_thread && !per_thread))
            continue;
        if (!best || symbol->per_thread > best->per_thread ||
            (symbol->per_thread == best->per_thread && symbol->version > best->version))
            best = symbol;
    }
    *function = best ? best->function : NULL;
    if (status)
        *status = best     ? CU_GET_PROC_ADDRESS_SUCCESS
                  : exists ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                           : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetExportTable(const void **table, const CUuuid *id) { return export_table_find(table, id); }
