/* The server's side of managed variables: read and written here for the application, as the driver allows every processor to.
 * Only what it has been told of is such memory, and only as long as its module or library is there. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct told_variable {
    CUdeviceptr base;
    size_t bytes;
    /* The module or the library. */
    const void *owner;
    /* A module ends with its context, of which nothing here is told. */
    int of_module;
    struct told_variable *next;
};

static struct told_variable *told_variables;
static pthread_mutex_t told_variables_lock = PTHREAD_MUTEX_INITIALIZER;

static int is_managed(CUdeviceptr pointer) {
    unsigned int managed = 0;
    return cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) == CUDA_SUCCESS && managed;
}

static CUresult note_variable(CUdeviceptr base, size_t bytes, const void *owner, int of_module) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&told_variables_lock);
    struct told_variable *told = told_variables;
    while (told && (told->base != base || told->owner != owner))
        told = told->next;
    if (!told && !(told = calloc(1, sizeof *told)))
        status = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!told->base) {
        *told = (struct told_variable){base, bytes, owner, of_module, told_variables};
        told_variables = told;
    }
    pthread_mutex_unlock(&told_variables_lock);
    return status;
}

/* The module or the library has ended. */
void cuda_forget_variables(const void *owner) {
    pthread_mutex_lock(&told_variables_lock);
    for (struct told_variable **link = &told_variables; *link;) {
        struct told_variable *told = *link;
        if (told->owner == owner) {
            *link = told->next;
            free(told);
        } else {
            link = &told->next;
        }
    }
    pthread_mutex_unlock(&told_variables_lock);
}

/* Whether all of it lies in one variable. Where a context is current the driver is asked as well, which ends them with their
 * contexts; the runtime looks at variables of libraries before it has any. */
static int is_variable(CUdeviceptr pointer, size_t bytes) {
    CUcontext context = NULL;
    int current = cuCtxGetCurrent(&context) == CUDA_SUCCESS && context, found = 0;
    pthread_mutex_lock(&told_variables_lock);
    for (const struct told_variable *told = told_variables; told && !found; told = told->next)
        found = pointer >= told->base && pointer - told->base <= told->bytes && bytes <= told->bytes - (pointer - told->base)
                && (current || !told->of_module);
    pthread_mutex_unlock(&told_variables_lock);
    return found && (!current || is_managed(pointer));
}

/* Whether processors may touch such memory while kernels run. */
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

/* What the driver has found, if `status` is good. */
static CUresult found_variable(CUresult status, const CUdeviceptr *pointer, const size_t *bytes, int managed, const void *owner,
                               int of_module) {
    if (status != CUDA_SUCCESS || !managed)
        return status;
    return may_share() ? note_variable(*pointer, *bytes, owner, of_module) : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult library_managed(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes) {
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return found_variable(cuLibraryGetManaged(pointer, bytes, library, name), pointer, bytes, 1, library, 0);
}

void *cuda_library_managed_function(void) {
    return (void *)library_managed;
}

static CUresult module_global(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed) {
    if (!pointer || !bytes || !managed)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuModuleGetGlobal_v2(pointer, bytes, module, name);
    *managed = status == CUDA_SUCCESS && is_managed(*pointer);
    return found_variable(status, pointer, bytes, *managed, module, 1);
}

void *cuda_module_global_function(void) {
    return (void *)module_global;
}

static CUresult library_global(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed) {
    if (!pointer || !bytes || !managed)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuLibraryGetGlobal(pointer, bytes, library, name);
    *managed = status == CUDA_SUCCESS && is_managed(*pointer);
    return found_variable(status, pointer, bytes, *managed, library, 0);
}

void *cuda_library_global_function(void) {
    return (void *)library_global;
}
