/* On which device memory lies, for the tenant's limits: a ordinal is the number of a device and 1, so that 0 is none. Above those
 * are the devices that this process does not see, where another of the tenant may have memory. */
#include "server.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ORDINALS = 64 };

uint64_t cuda_ordinal_of_device(CUdevice device) {
    return device >= 0 && device < MAX_ORDINALS ? (uint64_t)device + 1 : 0;
}

/* That of the current context. */
uint64_t cuda_ordinal_here(void) {
    CUdevice device = -1;
    return cuCtxGetDevice(&device) == CUDA_SUCCESS ? cuda_ordinal_of_device(device) : 0;
}

/* Names of devices among all that the node shows, where this process sees some of them only, or in another order.
 * Written before anybody uses the driver. */
static struct {
    int count;
    CUuuid uuids[MAX_ORDINALS];
    char names[MAX_ORDINALS][ORDINAL_NAME_BYTES + 8];
} told;

void cuda_set_shown_name(const CUuuid *uuid, const char *name) {
    if (told.count == MAX_ORDINALS)
        return;
    told.uuids[told.count] = *uuid;
    snprintf(told.names[told.count++], sizeof told.names[0], "%s", name);
}

/* The same number in every process, and not 0. */
static unsigned int uuid_tag(const CUuuid *uuid) {
    unsigned int tag = 0;
    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        tag = (tag * 31 + (unsigned char)uuid->bytes[i]) % 65521;
    return tag + 1;
}

unsigned int cuda_device_tag(CUdevice device) {
    CUuuid uuid;
    return cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS ? uuid_tag(&uuid) : 0;
}

/* The ordinal that a process with other devices has marked; `device` is its number here, -1 if it is not seen. */
uint64_t cuda_ordinal_of_tag(unsigned int tag, CUdevice *device) {
    int count = 0;
    if (cuDeviceGetCount(&count) == CUDA_SUCCESS)
        for (*device = 0; *device < count; ++*device)
            if (cuda_device_tag(*device) == tag)
                return cuda_ordinal_of_device(*device);
    *device = -1;
    for (int i = 0; i < told.count; i++)
        if (uuid_tag(&told.uuids[i]) == tag)
            return MAX_ORDINALS + 1 + (uint64_t)i;
    return 0;
}

static const char *shown_name(CUdevice device) {
    CUuuid uuid;
    if (!told.count || cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS)
        return NULL;
    for (int i = 0; i < told.count; i++)
        if (memcmp(&told.uuids[i], &uuid, sizeof uuid) == 0)
            return told.names[i];
    return NULL;
}

/* The device's own name; a second one of the same name gets a number. Known once it was asked for. */
const char *cuda_ordinal_name(uint64_t ordinal, unsigned int number) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char names[MAX_ORDINALS][ORDINAL_NAME_BYTES + 8];
    if (!number && ordinal > MAX_ORDINALS && ordinal - MAX_ORDINALS <= (uint64_t)told.count)
        return told.names[ordinal - MAX_ORDINALS - 1];
    if (number || !ordinal || ordinal > MAX_ORDINALS)
        return NULL;
    char *name = names[ordinal - 1], own[ORDINAL_NAME_BYTES] = "", other[ORDINAL_NAME_BYTES] = "";
    pthread_mutex_lock(&lock);
    const char *known = *name ? NULL : shown_name((CUdevice)(ordinal - 1));
    if (known)
        snprintf(name, sizeof names[0], "%s", known);
    if (!*name && cuDeviceGetName(own, sizeof own, (CUdevice)(ordinal - 1)) == CUDA_SUCCESS) {
        unsigned int same = 0;
        for (CUdevice before = 0; before < (CUdevice)(ordinal - 1); before++)
            same += cuDeviceGetName(other, sizeof other, before) == CUDA_SUCCESS && strcmp(own, other) == 0;
        if (same)
            snprintf(name, sizeof names[0], "%.50s #%u", own, same + 1);
        else
            snprintf(name, sizeof names[0], "%s", own);
    }
    pthread_mutex_unlock(&lock);
    return *name ? name : NULL;
}

uint64_t cuda_shared_bytes(int device) {
    struct aviary_shared_memory shared;
    const char *name = cuda_ordinal_name(cuda_ordinal_of_device(device), 0);
    return name && aviary_shared_memory(name, &shared) ? shared.memory : 0;
}

void cuda_show_allowance(uint64_t ordinal, size_t *available, size_t *total) {
    uint64_t limit, left;
    const char *name = cuda_ordinal_name(ordinal, 0);
    struct aviary_shared_memory shared;
    if (name && aviary_shared_memory(name, &shared)) {
        if (total && *total > shared.memory)
            *total = shared.memory;
        /* Whatever others have there makes room. */
        if (available)
            *available = shared.memory > shared.programs ? shared.memory - shared.programs : 0;
    }
    if (!aviary_allowance("device_memory", name, &limit, &left))
        return;
    if (total && *total > limit)
        *total = limit;
    if (available && *available > left)
        *available = left;
}

static CUresult total_memory(size_t *bytes, CUdevice device) {
    CUresult status = cuDeviceTotalMem_v2(bytes, device);
    if (status == CUDA_SUCCESS)
        cuda_show_allowance(cuda_ordinal_of_device(device), NULL, bytes);
    return status;
}

void *cuda_total_memory_function(void) {
    return (void *)total_memory;
}

/* The node counts what it has granted. Contexts, pools and programs that it does not know have memory, too: then the driver has none
 * although there was room. */
int cuda_make_room(CUdevice device, size_t bytes) {
    size_t available = 0, total = 0;
    CUdevice current = -1;
    const char *name = cuda_ordinal_name(cuda_ordinal_of_device(device), 0);
    if (!name)
        return 0;
    int is_known = cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device
                   && cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS;
    /* What is free in many places may be too little in one. */
    return aviary_make_room(name, is_known && available < bytes ? bytes - available : bytes);
}

/* Memory that is allocated in a stream's order comes from the pool of the stream's device. */
uint64_t cuda_ordinal_of_stream(CUstream stream) {
    CUcontext context = NULL;
    int pushed = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD
                 && cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && cuCtxPushCurrent(context) == CUDA_SUCCESS;
    uint64_t ordinal = cuda_ordinal_here();
    if (pushed)
        cuCtxPopCurrent(&context);
    return ordinal;
}

/* ---- Pools ------------------------------------------------------------------------------------ */

/* Those that the application made. The lock is held while one is made or destroyed: its handle may be another's at once. */
static struct known_pool {
    CUmemoryPool pool;
    CUdevice device;
    struct known_pool *next;
} *known_pools;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult create_pool(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct known_pool *known = malloc(sizeof *known);
    if (!known)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&pools_lock);
    CUresult status = cuMemPoolCreate(pool, properties);
    if (status == CUDA_SUCCESS) {
        *known = (struct known_pool){*pool, properties->location.id, known_pools};
        known_pools = known;
    }
    pthread_mutex_unlock(&pools_lock);
    if (status != CUDA_SUCCESS)
        free(known);
    return status;
}

void *cuda_create_pool_function(void) {
    return (void *)create_pool;
}

CUresult cuda_destroy_known_pool(CUmemoryPool pool) {
    pthread_mutex_lock(&pools_lock);
    CUresult status = cuMemPoolDestroy(pool);
    struct known_pool **link = &known_pools;
    while (*link && (*link)->pool != pool)
        link = &(*link)->next;
    if (*link && status == CUDA_SUCCESS) {
        struct known_pool *known = *link;
        *link = known->next;
        free(known);
    }
    pthread_mutex_unlock(&pools_lock);
    return status;
}

/* Of a pool that nobody made it is the device whose own it is. */
uint64_t cuda_ordinal_of_pool(CUmemoryPool pool) {
    int count = 0;
    CUdevice device = -1;
    pthread_mutex_lock(&pools_lock);
    for (const struct known_pool *known = known_pools; known && device < 0; known = known->next)
        if (known->pool == pool)
            device = known->device;
    pthread_mutex_unlock(&pools_lock);
    if (device >= 0)
        return cuda_ordinal_of_device(device);
    if (cuDeviceGetCount(&count) != CUDA_SUCCESS)
        count = 0;
    for (CUdevice other = 0; other < count; other++) {
        CUmemoryPool own = NULL;
        if (cuDeviceGetDefaultMemPool(&own, other) == CUDA_SUCCESS && own == pool)
            return cuda_ordinal_of_device(other);
    }
    return cuda_ordinal_here();
}
