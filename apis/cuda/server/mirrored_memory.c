/* The server's side of managed variables: read and written here for the application, as the driver allows every CPU to.
 * Only what it has been told of is such memory, and only as long as its module or library is there. Page-locked memory of an
 * application that shares none with this process is kept here in the same way. */
#include "moving.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A module ends with its context, of which nothing here is told. */
enum variable_origin { OF_LIBRARY, OF_MODULE, PAGE_LOCKED };

struct mirrored_variable {
    CUdeviceptr base;
    size_t bytes;
    /* The module or the library. */
    const void *owner;
    enum variable_origin origin;
    struct mirrored_variable *next;
};

static struct mirrored_variable *mirrored_variables;
static pthread_mutex_t mirrored_variables_lock = PTHREAD_MUTEX_INITIALIZER;

static int is_managed(CUdeviceptr pointer) {
    unsigned int managed = 0;
    return cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) == CUDA_SUCCESS && managed;
}

static CUresult note_variable(CUdeviceptr base, size_t bytes, const void *owner, enum variable_origin origin) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&mirrored_variables_lock);
    struct mirrored_variable *told = mirrored_variables;
    while (told && (told->base != base || told->owner != owner))
        told = told->next;
    if (!told && !(told = calloc(1, sizeof *told)))
        status = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!told->base) {
        *told = (struct mirrored_variable){base, bytes, owner, origin, mirrored_variables};
        mirrored_variables = told;
    }
    pthread_mutex_unlock(&mirrored_variables_lock);
    return status;
}

/* The module or the library has ended. */
void cuda_forget_variables(const void *owner) {
    pthread_mutex_lock(&mirrored_variables_lock);
    for (struct mirrored_variable **link = &mirrored_variables; *link;) {
        struct mirrored_variable *told = *link;
        if (told->owner == owner) {
            *link = told->next;
            free(told);
        } else {
            link = &told->next;
        }
    }
    pthread_mutex_unlock(&mirrored_variables_lock);
}

/* True if all of it lies in one variable. Where a context is current the driver is asked as well, which ends them with their
 * contexts; the runtime looks at variables of libraries before it has any. */
static int is_variable(CUdeviceptr pointer, size_t bytes) {
    CUcontext context = NULL;
    int current = cuCtxGetCurrent(&context) == CUDA_SUCCESS && context, found = 0, page_locked = 0;
    pthread_mutex_lock(&mirrored_variables_lock);
    for (const struct mirrored_variable *told = mirrored_variables; told && !found; told = told->next) {
        page_locked = told->origin == PAGE_LOCKED;
        found = pointer >= told->base && pointer - told->base <= told->bytes && bytes <= told->bytes - (pointer - told->base)
                && (current || told->origin != OF_MODULE);
    }
    pthread_mutex_unlock(&mirrored_variables_lock);
    return found && (page_locked || !current || is_managed(pointer));
}

int cuda_has_managed_variables(void) {
    pthread_mutex_lock(&mirrored_variables_lock);
    int any = mirrored_variables != NULL;
    pthread_mutex_unlock(&mirrored_variables_lock);
    return any;
}

/* True if CPUs may touch such memory while kernels run. */
static int may_share(void) {
    int count = 0, concurrent = 0;
    if (cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return 0;
    for (CUdevice device = 0; device < count; device++)
        if (cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) != CUDA_SUCCESS || !concurrent)
            return 0;
    return 1;
}

static CUresult read_variable(CUdeviceptr pointer, void *to, size_t bytes) {
    if (!to || !is_variable(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, (const void *)(uintptr_t)pointer, bytes);
    return CUDA_SUCCESS;
}

void *cuda_read_variable_function(void) {
    return (void *)read_variable;
}

static CUresult write_variable(CUdeviceptr pointer, const void *from, size_t bytes) {
    if (!from || !is_variable(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy((void *)(uintptr_t)pointer, from, bytes);
    return CUDA_SUCCESS;
}

void *cuda_write_variable_function(void) {
    return (void *)write_variable;
}

/* The variable that the driver has found, if `status` is good. */
static CUresult found_variable(CUresult status, const CUdeviceptr *pointer, const size_t *bytes, int managed, const void *owner,
                               enum variable_origin origin) {
    if (status != CUDA_SUCCESS || !managed)
        return status;
    return may_share() ? note_variable(*pointer, *bytes, owner, origin) : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult library_managed(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes) {
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return found_variable(cuLibraryGetManaged(pointer, bytes, library, name), pointer, bytes, 1, library, OF_LIBRARY);
}

void *cuda_library_managed_function(void) {
    return (void *)library_managed;
}

static CUresult module_global(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed) {
    if (!pointer || !bytes || !managed)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuModuleGetGlobal_v2(pointer, bytes, module, name);
    *managed = status == CUDA_SUCCESS && is_managed(*pointer);
    return found_variable(status, pointer, bytes, *managed, module, OF_MODULE);
}

void *cuda_module_global_function(void) {
    return (void *)module_global;
}

static CUresult library_global(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed) {
    if (!pointer || !bytes || !managed)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuLibraryGetGlobal(pointer, bytes, library, name);
    *managed = status == CUDA_SUCCESS && is_managed(*pointer);
    return found_variable(status, pointer, bytes, *managed, library, OF_LIBRARY);
}

void *cuda_library_global_function(void) {
    return (void *)library_global;
}

/* ---- Page-locked memory ------------------------------------------------------------------------ */

/* As much as a guest may ask for at a time: what its own side compares at each launch. */
enum { PAGE_LOCKED_MOST = 65536 };

static CUresult map_host(CUdeviceptr base, size_t bytes) {
    CUdeviceptr device = 0;
    if (!bytes || bytes > PAGE_LOCKED_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    void *place = mmap((void *)(uintptr_t)base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (place == MAP_FAILED)
        return CUDA_ERROR_ALREADY_MAPPED;
    CUresult status = cuMemHostRegister_v2(place, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (status == CUDA_SUCCESS) {
        status = cuMemHostGetDevicePointer_v2(&device, place, 0);
        if (status == CUDA_SUCCESS)
            status = device == base ? note_variable(base, bytes, place, PAGE_LOCKED) : CUDA_ERROR_NOT_SUPPORTED;
        if (status != CUDA_SUCCESS)
            cuMemHostUnregister(place);
    }
    if (status != CUDA_SUCCESS)
        munmap(place, bytes);
    return status;
}

void *cuda_map_host_function(void) {
    return (void *)map_host;
}

static CUresult unmap_host(CUdeviceptr base) {
    size_t bytes = 0;
    pthread_mutex_lock(&mirrored_variables_lock);
    for (const struct mirrored_variable *told = mirrored_variables; told && !bytes; told = told->next)
        if (told->origin == PAGE_LOCKED && told->base == base)
            bytes = told->bytes;
    pthread_mutex_unlock(&mirrored_variables_lock);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *place = (void *)(uintptr_t)base;
    cuda_forget_variables(place);
    CUresult status = cuMemHostUnregister(place);
    munmap(place, bytes);
    return status;
}

void *cuda_unmap_host_function(void) {
    return (void *)unmap_host;
}
