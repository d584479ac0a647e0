/* Initialization, which primary contexts are retained, what begins and ends with a context: the guest's own state. */
#include "guest/context_storage.h"
#include "guest/export_tables.h"
#include "guest/functions.h"
#include "guest/ranges.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- Initialization ------------------------------------------------------------------------- */

static int initialized, forked;

static void in_child(void) {
    forked = initialized;
    initialized = 0;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, in_child);
}

/* True if the application wants each launch to return when the kernel has run (CUDA_LAUNCH_BLOCKING), as it was set at cuInit. */
static int launches_block;

int cuda_launches_block(void) {
    return __atomic_load_n(&launches_block, __ATOMIC_RELAXED);
}

static void note_variables(void) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    __atomic_store_n(&launches_block, blocking && atoi(blocking) != 0, __ATOMIC_RELAXED);
}

CUresult cuda_initialize(unsigned int flags) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (flags == 0 && __atomic_load_n(&initialized, __ATOMIC_ACQUIRE))
        return CUDA_SUCCESS;
    /* A child of a process that uses the driver cannot. */
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult status = aviaryInitialize(flags, getenv("CUDA_VISIBLE_DEVICES"), getenv("CUDA_DEVICE_ORDER"));
    if (status == CUDA_SUCCESS) {
        pthread_once(&once, watch_forks);
        note_variables();
        __atomic_store_n(&initialized, 1, __ATOMIC_RELEASE);
    }
    return status;
}

int cuda_is_initialized(void) {
    return __atomic_load_n(&initialized, __ATOMIC_ACQUIRE);
}

/* ---- How many contexts ---------------------------------------------------------------------- */

static CUcontext first;
static int several;

static void note_context(CUcontext context) {
    CUcontext none = NULL;
    if (!__atomic_compare_exchange_n(&first, &none, context, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) && none != context)
        __atomic_store_n(&several, 1, __ATOMIC_RELEASE);
}

/* True if this process has ever had more than one. */
int cuda_has_other_contexts(void) {
    return __atomic_load_n(&several, __ATOMIC_ACQUIRE);
}

/* ---- Primary contexts ----------------------------------------------------------------------- */

enum { MOST_DEVICES = 64 };

/* The server's process retains each once, as long as somebody here may use it. */
static struct {
    CUcontext context;
    /* The server's process retains it; how often the application does. */
    int held;
    int retained;
    unsigned int flags;
} primaries[MOST_DEVICES];
static pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;

static int is_device(CUdevice device) {
    return device >= 0 && device < MOST_DEVICES;
}

int cuda_primary_held(CUdevice device) {
    return is_device(device) && __atomic_load_n(&primaries[device].held, __ATOMIC_ACQUIRE);
}

CUresult cuda_primary_retain(CUcontext *context, CUdevice device) {
    pthread_mutex_lock(&primaries_lock);
    int held = primaries[device].held;
    if (held) {
        primaries[device].retained++;
        *context = primaries[device].context;
    }
    pthread_mutex_unlock(&primaries_lock);
    /* Another thread released it between the question and now: ask the server. */
    return held ? CUDA_SUCCESS : cuDevicePrimaryCtxRetain(context, device);
}

void cuda_note_primary(CUcontext context, CUdevice device) {
    struct cuda_context *object = cuda_context_of(context);
    aviary_keep_connection();
    if (!object || !is_device(device))
        return;
    object->device = device;
    object->sticky_error = 0;
    note_context(context);
    pthread_mutex_lock(&primaries_lock);
    primaries[device].context = context;
    primaries[device].retained++;
    __atomic_store_n(&primaries[device].held, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&primaries_lock);
}

/* True if the application still retains it afterwards: then the server need not know. */
int cuda_primary_release(CUdevice device) {
    if (!is_device(device))
        return 0;
    pthread_mutex_lock(&primaries_lock);
    int last = primaries[device].retained <= 1;
    if (primaries[device].retained > 0)
        primaries[device].retained--;
    if (last)
        __atomic_store_n(&primaries[device].held, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&primaries_lock);
    if (last)
        cuda_context_ended();
    return !last;
}

void cuda_primary_reset(CUdevice device) {
    if (!is_device(device))
        return;
    struct cuda_context *object = cuda_context_of(primaries[device].context);
    if (object)
        object->sticky_error = 0;
    /* The next retain brings it back to life, which only the driver can. */
    __atomic_store_n(&primaries[device].held, 0, __ATOMIC_RELEASE);
    cuda_forget_device_ranges(device);
    context_storage_end(primaries[device].context);
    cuda_context_ended();
}

void cuda_note_primary_flags(CUdevice device, unsigned int flags) {
    if (is_device(device))
        __atomic_store_n(&primaries[device].flags, flags, __ATOMIC_RELEASE);
}

CUresult cuda_primary_state(CUdevice device, unsigned int *flags, int *active) {
    *flags = __atomic_load_n(&primaries[device].flags, __ATOMIC_ACQUIRE);
    *active = __atomic_load_n(&primaries[device].retained, __ATOMIC_ACQUIRE) > 0;
    return CUDA_SUCCESS;
}

/* ---- What the export tables ask --------------------------------------------------------------- */

CUresult export_tables_primary_context(CUcontext *context, CUdevice device) {
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!cuda_primary_held(device)) {
        CUresult status = cuDevicePrimaryCtxRetain(context, device);
        /* The server retains it from now on, nobody here does yet. */
        if (status == CUDA_SUCCESS)
            __atomic_sub_fetch(&primaries[device].retained, 1, __ATOMIC_ACQ_REL);
        return status;
    }
    *context = primaries[device].context;
    return CUDA_SUCCESS;
}

CUresult export_tables_clusters(CUdevice device, size_t count, uint8_t *place, uint8_t *graphics_cluster) {
    unsigned int found = 0;
    CUresult status = aviaryClusterTables(device, (unsigned int)count, &found, place, graphics_cluster);
    return status == CUDA_SUCCESS && found != count ? CUDA_ERROR_UNKNOWN : status;
}

/* ---- Contexts that begin and end ------------------------------------------------------------- */

/* The older form: without parameters an ordinary context. */
CUresult cuda_create_context(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                             CUdevice device) {
    CUctxCreateParams parameters = {.execAffinityParams = affinity, .numExecAffinityParams = count};
    return cuCtxCreate_v4(context, count ? &parameters : NULL, flags, device);
}

/* A new context is current in the thread that made it. The driver has put it on the server's thread; it is told once more, as
 * a session that moves knows no more of its threads. */
void cuda_created(CUcontext context, CUdevice device) {
    struct cuda_context *object = cuda_context_of(context);
    if (!object)
        return;
    aviary_keep_connection();
    object->device = device;
    note_context(context);
    cuda_put_current(context);
}

/* A context with a part of a device, and the ordinary context that stands for it. */
void cuda_note_green_context(CUgreenCtx green, CUdevice device) {
    struct cuda_green_context *object = green ? metadata(struct cuda_green_context, green) : NULL;
    if (object)
        object->device = device;
}

void cuda_note_context_of_green(CUcontext context, CUgreenCtx green) {
    const struct cuda_green_context *known = green ? metadata(struct cuda_green_context, green) : NULL;
    struct cuda_context *object = cuda_context_of(context);
    if (!object || !known)
        return;
    object->device = known->device;
    note_context(context);
}

/* A destroyed context is popped from the calling thread; the server's thread follows. */
void cuda_destroyed(CUcontext context) {
    context_storage_end(context);
    cuda_context_ended();
    cuda_drop_current(context);
}

CUresult cuda_get_current(CUcontext *context) {
    if (!__atomic_load_n(&initialized, __ATOMIC_ACQUIRE))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = cuda_current_context();
    return CUDA_SUCCESS;
}

CUresult cuda_device_of(CUdevice *device, CUcontext context) {
    const struct cuda_context *object = cuda_context_of(context ? context : cuda_current_context());
    if (!__atomic_load_n(&initialized, __ATOMIC_ACQUIRE))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!object)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = object->device;
    return CUDA_SUCCESS;
}

CUresult cuda_current_device(CUdevice *device) {
    return cuda_device_of(device, NULL);
}

int cuda_has_context(void) {
    return cuda_current_context() != NULL && cuda_no_sticky_error();
}

/* Frees nothing, with a context or without. */
CUresult cuda_free_nothing(void) {
    if (!__atomic_load_n(&initialized, __ATOMIC_ACQUIRE))
        return CUDA_ERROR_NOT_INITIALIZED;
    return !cuda_current_context() || cuda_no_sticky_error() ? CUDA_SUCCESS : cuCtxSynchronize();
}

