/* Physical memory that an application maps itself: who still uses it. It is charged to the tenant until its handle is
 * released and the last mapping of it is gone. */
#include "server.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* reservations.c */
int cuda_may_map(CUdeviceptr base, size_t bytes);

struct physical {
    CUmemGenericAllocationHandle handle;
    size_t bytes;
    int device;
    uint64_t number;
    /* Handles that the application has of it. */
    unsigned int handles;
    unsigned int mappings;
    struct cuda_offer offer;
    struct physical *next;
};

struct mapping {
    CUdeviceptr base;
    size_t bytes;
    struct physical *of;
    struct mapping *next;
};

static struct physical *physicals;
static struct mapping *mappings;
static pthread_mutex_t physical_lock = PTHREAD_MUTEX_INITIALIZER;

/* Where the driver cannot export memory, that which may be exported is made as memory that may not: PyTorch's allocator
 * asks for such on every machine, and only who exports it would notice. */
int cuda_physical_allowed(const CUmemAllocationProp *property) {
    return property
           && (property->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE
               || property->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
           && property->location.type == CU_MEM_LOCATION_TYPE_DEVICE && property->type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

static CUresult create_physical(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *property,
                                unsigned long long flags) {
    CUmemAllocationProp own = *property;
    if (!cuda_is_offerable(property->location.id))
        own.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    return cuMemCreate(handle, bytes, &own, flags);
}

void *cuda_create_physical_function(void) {
    return (void *)create_physical;
}

/* With the lock. */
static void end_if_unused(struct physical *physical) {
    if (physical->handles || physical->mappings)
        return;
    cuda_end_offer(&physical->offer);
    struct physical **link = &physicals;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    aviary_charge_return(physical->number);
    free(physical);
}

/* With the lock. */
static struct physical *find_physical(CUmemGenericAllocationHandle handle) {
    for (struct physical *physical = physicals; physical; physical = physical->next)
        if (physical->handle == handle)
            return physical;
    return NULL;
}

void cuda_keep_physical(CUmemGenericAllocationHandle handle, size_t bytes, int device) {
    static uint64_t numbers = (uint64_t)1 << 63;
    pthread_mutex_lock(&physical_lock);
    /* A driver may answer the handle that is there when memory of this process comes back to it. */
    struct physical *physical = find_physical(handle);
    if (physical) {
        physical->handles++;
    } else if ((physical = calloc(1, sizeof *physical))) {
        *physical = (struct physical){.handle = handle, .bytes = bytes, .device = device, .number = numbers++, .handles = 1,
                                      .next = physicals};
        physicals = physical;
        aviary_charge_keep(physical->number);
    }
    /* Without memory to remember it, it stays charged to its handle alone. */
    pthread_mutex_unlock(&physical_lock);
}

/* Only what the application maps has a handle that it may know. */
int cuda_may_retain(const void *address) {
    return cuda_may_map((CUdeviceptr)(uintptr_t)address, 1);
}

void cuda_retain_physical(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (physical)
        physical->handles++;
    pthread_mutex_unlock(&physical_lock);
}

void cuda_drop_physical(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (physical && physical->handles) {
        physical->handles--;
        end_if_unused(physical);
    }
    pthread_mutex_unlock(&physical_lock);
}

/* ---- Of and for other processes ---------------------------------------------------------------- */

/* With the lock. */
static CUresult offer_physical(struct physical *physical) {
    int descriptor = -1;
    if (physical->offer.stands)
        return CUDA_SUCCESS;
    CUresult status = cuMemExportToShareableHandle(&descriptor, physical->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != CUDA_SUCCESS)
        return status;
    status = cuda_offer_memory(&physical->offer, descriptor, physical->bytes, physical->device);
    close(descriptor);
    return status;
}

static CUresult export_physical(CUmemGenericAllocationHandle handle, aviary_shared_name *name) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (physical && name)
        status = offer_physical(physical);
    if (status == CUDA_SUCCESS)
        cuda_tell_offer_name(&physical->offer, name);
    pthread_mutex_unlock(&physical_lock);
    return status;
}

void *cuda_export_function(void) {
    return (void *)export_physical;
}

static CUresult import_physical(CUmemGenericAllocationHandle *handle, const aviary_shared_name *name) {
    (void)name;
    return cuda_import_fetched(handle);
}

void *cuda_import_function(void) {
    return (void *)import_physical;
}

void cuda_keep_imported(CUmemGenericAllocationHandle handle) {
    cuda_keep_physical(handle, cuda_fetched.bytes, cuda_fetched.device);
}

/* ---- Mappings ---------------------------------------------------------------------------------- */

void cuda_keep_mapping(CUdeviceptr base, size_t bytes, CUmemGenericAllocationHandle handle) {
    struct mapping *mapping = calloc(1, sizeof *mapping);
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (physical)
        physical->mappings++;
    /* Unknown for want of memory, the mapping counts for ever. */
    if (mapping && physical) {
        *mapping = (struct mapping){base, bytes, physical, mappings};
        mappings = mapping;
        mapping = NULL;
    }
    pthread_mutex_unlock(&physical_lock);
    free(mapping);
}

void cuda_drop_mappings(CUdeviceptr base, size_t bytes) {
    pthread_mutex_lock(&physical_lock);
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *mapping = *link;
        if (mapping->base < base || mapping->base - base >= bytes) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        mapping->of->mappings--;
        end_if_unused(mapping->of);
        free(mapping);
    }
    pthread_mutex_unlock(&physical_lock);
}

/* True if anything is mapped there. */
int cuda_has_mappings(CUdeviceptr base, size_t bytes) {
    int found = 0;
    pthread_mutex_lock(&physical_lock);
    for (const struct mapping *mapping = mappings; mapping && !found; mapping = mapping->next)
        found = mapping->base < base + bytes && base < mapping->base + mapping->bytes;
    pthread_mutex_unlock(&physical_lock);
    return found;
}
