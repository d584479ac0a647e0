/* What contexts take of their devices for themselves, which is charged to the tenant before the driver makes them. A context that the
 * application creates holds its own charge. A primary context is charged once, however often it is retained and whoever does: the
 * charge is kept under a number until the driver has the context no more. */
#include "server.h"
#include <pthread.h>
#include <stdint.h>

enum { MOST_DEVICES = 64 };

/* Of a primary context's charge, among the numbers of other charges of this process. */
#define CHARGE_NUMBER(device) ((uint64_t)1 << 60 | (uint64_t)(device))

/* Whose primary context is charged. With the lock contexts begin and end, too: none is made on a charge that has just been returned. */
static int charged[MOST_DEVICES];
static pthread_mutex_t charged_lock = PTHREAD_MUTEX_INITIALIZER;
/* What the gate was told about the context that is made next on the same thread. */
static __thread uint64_t planned;

static int is_device(CUdevice device) {
    return device >= 0 && device < MOST_DEVICES;
}

uint64_t cuda_context_bytes(CUdevice device) {
    const char *name = is_device(device) ? cuda_ordinal_name(cuda_ordinal_of_device(device), 0) : NULL;
    return name ? aviary_context_bytes(name) : 0;
}

/* Bytes that the primary context is still to be charged with. */
uint64_t cuda_primary_context_bytes(CUdevice device) {
    pthread_mutex_lock(&charged_lock);
    planned = is_device(device) && !charged[device] ? cuda_context_bytes(device) : 0;
    pthread_mutex_unlock(&charged_lock);
    return planned;
}

/* After the call: its charge is the context's from now on. One that another thread was charged with meanwhile counts once. */
void cuda_keep_primary_context(CUdevice device) {
    if (!is_device(device))
        return;
    pthread_mutex_lock(&charged_lock);
    charged[device] = 1;
    pthread_mutex_unlock(&charged_lock);
    aviary_charge_keep(CHARGE_NUMBER(device));
}

/* With the lock: the charge ends if the driver has the context no more. */
static void settle(CUdevice device) {
    unsigned int flags = 0;
    int active = 0;
    if (!charged[device] || (cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active))
        return;
    charged[device] = 0;
    aviary_charge_return(CHARGE_NUMBER(device));
}

/* The context may have ended. */
void cuda_settle_primary_contexts(void) {
    pthread_mutex_lock(&charged_lock);
    for (CUdevice device = 0; device < MOST_DEVICES; device++)
        settle(device);
    pthread_mutex_unlock(&charged_lock);
}

/* With the lock. True if it was charged when the call began, and has ended since. */
static int lacks_charge(CUdevice device) {
    return is_device(device) && !planned && !charged[device] && cuda_context_bytes(device);
}

static CUresult retain(CUcontext *context, CUdevice device) {
    pthread_mutex_lock(&charged_lock);
    CUresult status = lacks_charge(device) ? CUDA_ERROR_OUT_OF_MEMORY : cuDevicePrimaryCtxRetain(context, device);
    pthread_mutex_unlock(&charged_lock);
    return status;
}

CUresult cuda_retain_charged_context(CUcontext *context, CUdevice device) {
    CUresult status = retain(context, device);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && planned && cuda_make_room(device, planned))
        status = retain(context, device);
    return status;
}

static CUresult create(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device) {
    CUresult status = cuCtxCreate_v4(context, parameters, flags, device);
    uint64_t bytes = status == CUDA_ERROR_OUT_OF_MEMORY ? cuda_context_bytes(device) : 0;
    return bytes && cuda_make_room(device, bytes) ? cuCtxCreate_v4(context, parameters, flags, device) : status;
}

void *cuda_create_context_function(void) {
    return (void *)create;
}

static CUresult create_green(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned int flags) {
    pthread_mutex_lock(&charged_lock);
    CUresult status = lacks_charge(device) ? CUDA_ERROR_OUT_OF_MEMORY : cuGreenCtxCreate(green, description, device, flags);
    pthread_mutex_unlock(&charged_lock);
    return status;
}

void *cuda_create_green_context_function(void) {
    return (void *)create_green;
}

CUresult cuda_end_primary_context(CUdevice device, CUresult (*end)(CUdevice)) {
    pthread_mutex_lock(&charged_lock);
    CUresult status = end(device);
    if (is_device(device))
        settle(device);
    pthread_mutex_unlock(&charged_lock);
    return status;
}
