/* Memory that both sides share and that is page-locked for the device: registered as long as the application has it, and again in
 * a process that the session moves to. */
#include "capture_mode.h"
#include "moving.h"
#include <pthread.h>
#include <stdlib.h>

struct registration {
    struct cuda_registered entry;
    struct registration *next;
};

static struct registration *registrations;
static pthread_mutex_t registrations_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult register_memory(void *memory, size_t bytes, unsigned int flags) {
    /* A copy that is captured needs memory meanwhile. */
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    CUresult status = cuMemHostRegister_v2(memory, bytes, flags & CU_MEMHOSTREGISTER_PORTABLE);
    cuda_end_relaxed(mode);
    return status;
}

static CUresult host_register(void *memory, size_t bytes, unsigned int flags) {
    struct registration *made = calloc(1, sizeof *made);
    CUcontext context = NULL;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = register_memory(memory, bytes, flags);
    if (status != CUDA_SUCCESS) {
        free(made);
        return status;
    }
    cuCtxGetCurrent(&context);
    made->entry = (struct cuda_registered){(uintptr_t)memory, bytes, aviary_object_id(context), flags};
    pthread_mutex_lock(&registrations_lock);
    made->next = registrations;
    registrations = made;
    pthread_mutex_unlock(&registrations_lock);
    return status;
}

void *cuda_host_register_function(void) {
    return (void *)host_register;
}

static CUresult host_unregister(void *memory, size_t bytes) {
    struct registration *ended = NULL;
    (void)bytes;
    CUresult status = cuMemHostUnregister(memory);
    pthread_mutex_lock(&registrations_lock);
    for (struct registration **link = &registrations; *link; link = &(*link)->next)
        if ((*link)->entry.address == (uintptr_t)memory) {
            ended = *link;
            *link = ended->next;
            break;
        }
    pthread_mutex_unlock(&registrations_lock);
    free(ended);
    return status;
}

void *cuda_host_unregister_function(void) {
    return (void *)host_unregister;
}

/* Memory of the application's own, whose pages both sides share at its address. NOT_SUPPORTED: the device has it at another one. */
static CUresult host_register_at(CUdeviceptr at, size_t bytes, unsigned int flags) {
    void *memory = (void *)(uintptr_t)at;
    CUdeviceptr device = 0;
    CUresult status = cuda_is_adopted(at, bytes) ? host_register(memory, bytes, flags) : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS && (cuMemHostGetDevicePointer_v2(&device, memory, 0) != CUDA_SUCCESS || device != at)) {
        host_unregister(memory, bytes);
        status = CUDA_ERROR_NOT_SUPPORTED;
    }
    return status;
}

void *cuda_host_register_at_function(void) {
    return (void *)host_register_at;
}

static CUresult host_unregister_at(CUdeviceptr at) {
    return cuda_is_adopted(at, 1) ? host_unregister((void *)(uintptr_t)at, 0) : CUDA_ERROR_INVALID_VALUE;
}

void *cuda_host_unregister_at_function(void) {
    return (void *)host_unregister_at;
}

/* Those of contexts that have ended ended with them. */
int cuda_list_registered(struct cuda_registered **entries, size_t *count) {
    size_t room = 0;
    pthread_mutex_lock(&registrations_lock);
    for (const struct registration *r = registrations; r; r = r->next)
        room++;
    *count = 0;
    *entries = room ? calloc(room, sizeof **entries) : NULL;
    for (const struct registration *r = registrations; r && *entries; r = r->next)
        if (cuda_context_serial(aviary_object(r->entry.context)))
            (*entries)[(*count)++] = r->entry;
    pthread_mutex_unlock(&registrations_lock);
    return !room || *entries;
}

/* Only memory that both sides share: all of it is adopted, or both ends of it lie in the arena, and so all of it. */
CUresult cuda_register_again(const struct cuda_registered *entries, size_t count) {
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++) {
        char *memory = (char *)(uintptr_t)entries[i].address;
        size_t bytes = entries[i].bytes;
        if (!bytes || bytes - 1 > UINTPTR_MAX - (uintptr_t)memory
            || (!cuda_is_adopted(entries[i].address, bytes) && !(aviary_is_zerocopy(memory) && aviary_is_zerocopy(memory + bytes - 1)))
            || !cuda_enter_context(aviary_object(entries[i].context)))
            return CUDA_ERROR_INVALID_VALUE;
        status = host_register(memory, bytes, (unsigned int)entries[i].flags);
        cuda_leave_context();
    }
    return status;
}
