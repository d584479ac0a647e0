#include "guest/export_tables.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/compile_cache.h"
#include "guest/context_storage.h"
#include "guest/message_digest.h"

/* A slot of a table: a function, or in the first slot of most tables the size of the table in bytes. */
typedef void (*slot)(void);

/* Slots that no known library calls. A function and not NULL: who calls it gets an error and no crash. */
static CUresult unknown_function(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* ISO C has no cast from a data pointer to a function pointer; POSIX requires that it works. */
#define SIZE(bytes) ((slot)(uintptr_t)(bytes))
#define CALLS(function) ((slot)(function))
#define UNKNOWN CALLS(unknown_function)
#define SLOTS(bytes) ((bytes) / sizeof(slot))

/* --- CUDART_INTERFACE --- */

static CUresult primary_context(CUcontext *context, CUdevice device)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    return export_tables_primary_context(context, device);
}

static const slot cudart_interface[SLOTS(104)] = {
    SIZE(104), UNKNOWN, CALLS(primary_context), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN,
    UNKNOWN,   UNKNOWN, UNKNOWN,                UNKNOWN, UNKNOWN, UNKNOWN,
};

/* --- RT_CALLBACK_HOOKS: two buffers by which tools and the runtime know of each other; nobody is there. --- */

static char hooks[1024], hook_names[14];

static void get_hooks(void **buffer, size_t *size)
{
    *buffer = hooks;
    *size = sizeof(hooks);
}

static void get_hook_names(void **buffer, size_t *size)
{
    *buffer = hook_names;
    *size = sizeof(hook_names);
}

static const slot callback_hooks[SLOTS(56)] = {
    SIZE(56), UNKNOWN, CALLS(get_hooks), UNKNOWN, UNKNOWN, UNKNOWN, CALLS(get_hook_names),
};

/* --- TOOLS_TLS --- */

static CUresult current_context(CUcontext *context) { return cuCtxGetCurrent(context); }

static const slot tools_thread_storage[SLOTS(24)] = {SIZE(24), UNKNOWN, CALLS(current_context)};

/* --- CTX_LOCAL_STORAGE: the one table without a size --- */

static const slot context_local_storage[4] = {
    CALLS(context_storage_put),
    CALLS(context_storage_delete),
    CALLS(context_storage_get),
    UNKNOWN,
};

/* --- CTX_CHECKS --- */

static CUresult check_context(CUcontext context, uint32_t *result, void **detail)
{
    (void)context;
    if (result)
        *result = 0;
    if (detail)
        *detail = NULL;
    return CUDA_SUCCESS;
}

static uint32_t check_nothing(void) { return 0; }

static const slot context_checks[SLOTS(120)] = {
    SIZE(120), UNKNOWN, CALLS(check_context), CALLS(check_nothing),
    UNKNOWN,   UNKNOWN, UNKNOWN,              UNKNOWN,
    UNKNOWN,   UNKNOWN, UNKNOWN,              UNKNOWN,
    UNKNOWN,   UNKNOWN, UNKNOWN,
};

/* --- INTEGRITY: a checksum over values of this process, which cudart computes as well --- */

static CUresult integrity(uint32_t version, uint64_t unix_seconds, uint64_t checksum[2]);

static const slot integrity_check[SLOTS(24)] = {SIZE(24), CALLS(integrity), UNKNOWN};

struct text {
    uint8_t *bytes;
    size_t size, room;
    int failed;
};

static void append(struct text *text, const void *value, size_t size)
{
    if (text->size + size > text->room) {
        text->failed = 1;
        return;
    }
    memcpy(text->bytes + text->size, value, size);
    text->size += size;
}

static void append_device(struct text *text, CUdevice device)
{
    static const CUdevice_attribute attributes[] = {
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    };
    CUuuid uuid;

    if (cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS) {
        text->failed = 1;
        return;
    }
    append(text, &uuid, sizeof(uuid));
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        int value;
        if (cuDeviceGetAttribute(&value, attributes[i], device) != CUDA_SUCCESS) {
            text->failed = 1;
            return;
        }
        append(text, &value, sizeof(value));
    }
}

/* Input of the checksum: the caller (process and thread at the time of the call), where the driver lies, its devices. */
static void append_process(struct text *text, uint32_t version, uint64_t unix_seconds)
{
    int driver_version;
    uint32_t driver, process = (uint32_t)getpid(), thread = (uint32_t)(uintptr_t)pthread_self();
    uint64_t interface_table = (uintptr_t)cudart_interface, integrity_table = (uintptr_t)integrity_check,
             function = (uintptr_t)integrity;

    if (cuDriverGetVersion(&driver_version) != CUDA_SUCCESS) {
        text->failed = 1;
        return;
    }
    driver = (uint32_t)driver_version;
    append(text, &driver, sizeof(driver));
    append(text, &version, sizeof(version));
    append(text, &process, sizeof(process));
    append(text, &thread, sizeof(thread));
    append(text, &interface_table, sizeof(interface_table));
    append(text, &integrity_table, sizeof(integrity_table));
    append(text, &function, sizeof(function));
    append(text, &unix_seconds, sizeof(unix_seconds));
}

static CUresult integrity(uint32_t version, uint64_t unix_seconds, uint64_t checksum[2])
{
    static const uint8_t key[DIGEST_SIZE] = {
        0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52, 0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F,
    };
    enum { PROCESS_SIZE = 48, DEVICE_SIZE = 28 };
    struct text text = {0};
    uint8_t digest[DIGEST_SIZE];
    CUresult result;
    int devices;

    if (!checksum)
        return CUDA_ERROR_INVALID_VALUE;
    if (version % 10 < 2) {
        checksum[0] = version % 10 == 0 ? 0x3341181C03CB675CULL : 0x1841181C03CB675CULL;
        checksum[1] = 0x8ED383AA1F4CD1E8ULL;
        return CUDA_SUCCESS;
    }
    result = cuDeviceGetCount(&devices);
    if (result != CUDA_SUCCESS)
        return result;
    text.room = PROCESS_SIZE + (size_t)devices * DEVICE_SIZE;
    text.bytes = malloc(text.room);
    if (!text.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    append_process(&text, version, unix_seconds);
    for (int i = 0; i < devices && !text.failed; i++) {
        CUdevice device;
        if (cuDeviceGet(&device, i) != CUDA_SUCCESS)
            text.failed = 1;
        else
            append_device(&text, device);
    }
    if (text.failed)
        result = CUDA_ERROR_UNKNOWN;
    else if (digest_hmac_md2(key, text.bytes, text.size, digest) != 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        memcpy(checksum, digest, sizeof(digest));
    free(text.bytes);
    return result;
}

/* --- 21318c60 (ToolsContext): cublasLt asks for a context's id before every multiplication --- */

static CUresult context_device(CUcontext context, CUdevice *device)
{
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    return cuCtxGetDevice_v2(device, context);
}

static CUresult context_id(CUcontext context, uint64_t *id)
{
    unsigned long long value;
    CUresult result;

    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    result = cuCtxGetId(context, &value);
    if (result == CUDA_SUCCESS)
        *id = value;
    return result;
}

/* --- 1734dc26: where the texture processing clusters (TPC) lie, asked for by cublasLt --- */

static CUresult clusters(uint8_t **place, uint8_t **graphics_cluster)
{
    int multiprocessors;
    CUdevice device;
    CUresult result;
    size_t count;
    uint8_t *first, *second;

    if (!place || !graphics_cluster)
        return CUDA_ERROR_INVALID_VALUE;
    result = cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (result != CUDA_SUCCESS)
        return result;
    count = multiprocessors > 1 ? (size_t)multiprocessors / 2 : 1;
    first = malloc(count);
    second = malloc(count);
    result = first && second ? export_tables_clusters(device, count, first, second) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(first);
        free(second);
        return result;
    }
    *place = first;
    *graphics_cluster = second;
    return CUDA_SUCCESS;
}

static CUresult free_clusters(uint8_t *place, uint8_t *graphics_cluster)
{
    free(place);
    free(graphics_cluster);
    return CUDA_SUCCESS;
}

/* --- 21318c60 again: cuBLAS 13.1 wants to tell streams apart --- */

/* The stream that a handle stands for: 0 is the default one. */
static CUresult stream_meant(CUcontext context, CUstream stream, CUstream *meant)
{
    (void)context;
    if (!meant)
        return CUDA_ERROR_INVALID_VALUE;
    *meant = stream ? stream : CU_STREAM_LEGACY;
    return CUDA_SUCCESS;
}

static CUresult stream_id(CUcontext context, CUstream stream, uint64_t *id)
{
    unsigned long long value;
    CUresult result;

    (void)context;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    result = cuStreamGetId(stream, &value);
    if (result == CUDA_SUCCESS)
        *id = value;
    return result;
}

/* --- 6e163fbe (ToolsModule): cuFFT has each function of a module told to a function of its own --- */

enum { MOST_TOLD = 1024 };

/* Returns how many there were (the driver returned 1 for modules of one kernel). */
static int tell_functions(CUcontext context, CUmodule module, void (*tell)(void *to, CUfunction function), void *to)
{
    CUfunction *functions;
    unsigned int count = 0;

    (void)context;
    if (!tell || cuModuleGetFunctionCount(&count, module) != CUDA_SUCCESS || count > MOST_TOLD)
        return 0;
    functions = calloc(count ? count : 1, sizeof(functions[0]));
    if (!functions || cuModuleEnumerateFunctions(functions, count, module) != CUDA_SUCCESS)
        count = 0;
    for (unsigned int i = 0; i < count; i++)
        tell(to, functions[i]);
    free(functions);
    return (int)count;
}

/* --- da9151d3: NVRTC asks for what was compiled before (seen with the driver 580 and CUDA 13.0) --- */

static const slot compiled[SLOTS(56)] = {
    SIZE(56), CALLS(compile_cache_open), CALLS(compile_cache_close), CALLS(compile_cache_find),
    CALLS(compile_cache_store), UNKNOWN, CALLS(compile_cache_free),
};

/* --- finding --- */

/* The long tables are nearly all unknown: filled once, then only read. */
static slot tools_context_table[SLOTS(744)], clusters_table[SLOTS(136)], tools_module_table[SLOTS(792)];

static void fill(slot *table, size_t bytes)
{
    table[0] = SIZE(bytes);
    for (size_t i = 1; i < SLOTS(bytes); i++)
        table[i] = UNKNOWN;
}

static void fill_tables(void)
{
    fill(tools_context_table, sizeof(tools_context_table));
    tools_context_table[3] = CALLS(context_device);
    tools_context_table[4] = CALLS(context_id);
    tools_context_table[39] = CALLS(stream_id);
    tools_context_table[51] = CALLS(stream_meant);
    fill(clusters_table, sizeof(clusters_table));
    clusters_table[4] = CALLS(clusters);
    clusters_table[13] = CALLS(free_clusters);
    fill(tools_module_table, sizeof(tools_module_table));
    tools_module_table[7] = CALLS(tell_functions);
}

/* Refused, as callers can do without: f8cff951 (cudart), 69a28e9f (NVML), and all others. */
static const struct {
    unsigned char id[16];
    const slot *table;
} tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, cudart_interface},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, callback_hooks},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, tools_thread_storage},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, context_local_storage},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, context_checks},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}, integrity_check},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}, tools_context_table},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca}, clusters_table},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e}, tools_module_table},
    {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28}, compiled},
};

CUresult export_table_find(const void **table, const CUuuid *id)
{
    static pthread_once_t filled = PTHREAD_ONCE_INIT;

    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    pthread_once(&filled, fill_tables);
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (memcmp(tables[i].id, id->bytes, sizeof(tables[i].id)) == 0) {
            *table = tables[i].table;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

void export_tables_context_ended(CUcontext context) { context_storage_end(context); }
