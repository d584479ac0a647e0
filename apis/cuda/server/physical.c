/* Physical memory that an application maps itself: who still uses it. It is charged to the tenant until its handle is
 * released and the last mapping of it is gone. */
#include "moving.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* reservations.c */
int cuda_may_map(CUdeviceptr base, size_t bytes);

/* What the application's handle stands for, so that the memory behind it can leave the device and return. */
struct physical {
    /* The driver's, of which this is the one reference; 0: the memory is out. */
    CUmemGenericAllocationHandle memory;
    CUmemAllocationProp property;
    size_t bytes;
    uint64_t number;
    /* Of another process. */
    int imported;
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
    /* While the memory is out: what each device may do with it. */
    unsigned char access[CUDA_MOST_PLACES];
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

/* With the lock: the one of this handle; NULL: the application has made it up. */
static struct physical *find_physical(CUmemGenericAllocationHandle handle) {
    struct physical *physical = physicals;
    while (physical && (uintptr_t)physical != handle)
        physical = physical->next;
    return physical;
}

/* With the lock: one more handle of what the driver calls so, whose reference it takes; 0: there is no memory to remember it. */
static CUmemGenericAllocationHandle handle_of(CUmemGenericAllocationHandle memory, size_t bytes, int imported) {
    static uint64_t numbers = (uint64_t)1 << 63;
    struct physical *physical = physicals;
    /* A driver may answer the handle that is there when memory of this process comes back to it. */
    while (physical && physical->memory != memory)
        physical = physical->next;
    CUmemAllocationProp property;
    if (physical) {
        cuMemRelease(memory);
    } else if (cuMemGetAllocationPropertiesFromHandle(&property, memory) == CUDA_SUCCESS && (physical = calloc(1, sizeof *physical))) {
        *physical = (struct physical){.memory = memory, .property = property, .bytes = bytes, .number = numbers++,
                                      .imported = imported, .next = physicals};
        physicals = physical;
    } else {
        cuMemRelease(memory);
        return 0;
    }
    physical->handles++;
    return (uintptr_t)physical;
}

static CUresult tell_handle(CUmemGenericAllocationHandle *handle, CUmemGenericAllocationHandle memory, size_t bytes, int imported) {
    pthread_mutex_lock(&physical_lock);
    *handle = handle_of(memory, bytes, imported);
    pthread_mutex_unlock(&physical_lock);
    return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult create_physical(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *property,
                                unsigned long long flags) {
    CUmemAllocationProp own = *property;
    CUmemGenericAllocationHandle memory = 0;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_is_offerable(property->location.id))
        own.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CUresult status = cuMemCreate(&memory, bytes, &own, flags);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && cuda_make_room(property->location.id, bytes))
        status = cuMemCreate(&memory, bytes, &own, flags);
    return status == CUDA_SUCCESS ? tell_handle(handle, memory, bytes, 0) : status;
}

void *cuda_create_physical_function(void) {
    return (void *)create_physical;
}

/* With the lock. */
static CUresult end_if_unused(struct physical *physical) {
    if (physical->handles || physical->mappings)
        return CUDA_SUCCESS;
    cuda_end_offer(&physical->offer);
    struct physical **link = &physicals;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    aviary_charge_return(physical->number);
    CUresult status = physical->memory ? cuMemRelease(physical->memory) : CUDA_SUCCESS;
    free(physical);
    return status;
}

/* Its charge is the memory's from now on, not the handle's. */
void cuda_keep_physical(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (physical && physical->handles == 1 && !physical->mappings)
        aviary_charge_keep(physical->number);
    pthread_mutex_unlock(&physical_lock);
}

/* Only what the application maps has a handle that it may know. */
int cuda_may_retain(const void *address) {
    return cuda_may_map((CUdeviceptr)(uintptr_t)address, 1);
}

static CUresult retain_physical(CUmemGenericAllocationHandle *handle, void *address) {
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!handle)
        return status;
    pthread_mutex_lock(&physical_lock);
    for (const struct mapping *mapping = mappings; mapping && status != CUDA_SUCCESS; mapping = mapping->next)
        if (at >= mapping->base && at - mapping->base < mapping->bytes) {
            mapping->of->handles++;
            *handle = (uintptr_t)mapping->of;
            status = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&physical_lock);
    return status;
}

void *cuda_retain_physical_function(void) {
    return (void *)retain_physical;
}

static CUresult release_physical(CUmemGenericAllocationHandle handle) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (physical && physical->handles) {
        physical->handles--;
        status = end_if_unused(physical);
    }
    pthread_mutex_unlock(&physical_lock);
    return status;
}

void *cuda_release_physical_function(void) {
    return (void *)release_physical;
}

static CUresult physical_properties(CUmemAllocationProp *property, CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&physical_lock);
    const struct physical *physical = find_physical(handle);
    if (physical && property)
        *property = physical->property;
    pthread_mutex_unlock(&physical_lock);
    return physical && property ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void *cuda_physical_properties_function(void) {
    return (void *)physical_properties;
}

/* ---- Of and for other processes ---------------------------------------------------------------- */

/* With the lock. */
static CUresult offer_physical(struct physical *physical) {
    int descriptor = -1;
    if (physical->offer.stands)
        return CUDA_SUCCESS;
    CUresult status = cuMemExportToShareableHandle(&descriptor, physical->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != CUDA_SUCCESS)
        return status;
    status = cuda_offer_memory(&physical->offer, descriptor, physical->bytes, physical->property.location.id);
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
    CUmemGenericAllocationHandle memory = 0;
    size_t bytes = cuda_fetched.bytes;
    (void)name;
    CUresult status = handle ? cuda_import_fetched(&memory) : CUDA_ERROR_INVALID_VALUE;
    return status == CUDA_SUCCESS ? tell_handle(handle, memory, bytes, 1) : status;
}

void *cuda_import_function(void) {
    return (void *)import_physical;
}

/* ---- Mappings ---------------------------------------------------------------------------------- */

static CUresult map_physical(CUdeviceptr base, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                             unsigned long long flags) {
    struct mapping *mapping = calloc(1, sizeof *mapping);
    CUresult status = mapping ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (mapping && physical)
        status = cuMemMap(base, bytes, offset, physical->memory, flags);
    if (status == CUDA_SUCCESS) {
        physical->mappings++;
        *mapping = (struct mapping){.base = base, .bytes = bytes, .of = physical, .next = mappings};
        mappings = mapping;
        mapping = NULL;
    }
    pthread_mutex_unlock(&physical_lock);
    free(mapping);
    return status;
}

void *cuda_map_function(void) {
    return (void *)map_physical;
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

/* ---- Memory that leaves the device and returns ---------------------------------------------------- */

/* With the lock: a mapping of all of it from which it can be copied; NULL: the memory stays, as nobody could say what is in it, or
 * another process has it. */
static const struct mapping *whole_mapping(const struct physical *physical) {
    unsigned long long access = 0;
    if (physical->imported || physical->offer.stands || !physical->memory)
        return NULL;
    for (const struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (mapping->of == physical && mapping->bytes == physical->bytes
            && cuMemGetAccess(&access, &physical->property.location, mapping->base) == CUDA_SUCCESS
            && access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return mapping;
    return NULL;
}

size_t cuda_list_physical(CUdevice device, struct cuda_evictable *list, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&physical_lock);
    for (const struct physical *physical = physicals; physical; physical = physical->next) {
        const struct mapping *whole = physical->property.location.id == device ? whole_mapping(physical) : NULL;
        if (whole && count++ < room)
            list[count - 1] = (struct cuda_evictable){whole->base, whole->bytes, (uintptr_t)physical};
    }
    pthread_mutex_unlock(&physical_lock);
    return count;
}

static CUmemLocation place_of(int device) {
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUresult unmap_one(struct mapping *mapping) {
    for (int device = 0; device < CUDA_MOST_PLACES; device++) {
        CUmemLocation location = place_of(device);
        unsigned long long access = 0;
        int known = cuMemGetAccess(&access, &location, mapping->base) == CUDA_SUCCESS;
        mapping->access[device] = known ? (unsigned char)access : 0;
    }
    return cuMemUnmap(mapping->base, mapping->bytes);
}

static CUresult map_one(const struct mapping *mapping) {
    CUresult status = cuMemMap(mapping->base, mapping->bytes, 0, mapping->of->memory, 0);
    for (int device = 0; device < CUDA_MOST_PLACES && status == CUDA_SUCCESS; device++) {
        CUmemAccessDesc access = {place_of(device), (CUmemAccess_flags)mapping->access[device]};
        if (!mapping->access[device])
            continue;
        status = cuMemSetAccess(mapping->base, mapping->bytes, &access, 1);
        if (status != CUDA_SUCCESS)
            cuMemUnmap(mapping->base, mapping->bytes);
    }
    return status;
}

/* With the lock: all mappings of it, up to `end`; the one at which that failed, or `end`. */
static struct mapping *unmap_until(const struct physical *physical, const struct mapping *end, CUresult *status) {
    struct mapping *mapping = mappings;
    for (; mapping != end && *status == CUDA_SUCCESS; mapping = mapping->next)
        if (mapping->of == physical && (*status = unmap_one(mapping)) != CUDA_SUCCESS)
            break;
    return mapping;
}

/* With the lock: the same the other way. */
static struct mapping *map_until(const struct physical *physical, const struct mapping *end, CUresult *status) {
    struct mapping *mapping = mappings;
    for (; mapping != end && *status == CUDA_SUCCESS; mapping = mapping->next)
        if (mapping->of == physical && (*status = map_one(mapping)) != CUDA_SUCCESS)
            break;
    return mapping;
}

CUresult cuda_physical_leaves(uint64_t which) {
    CUresult status = CUDA_SUCCESS, again = CUDA_SUCCESS;
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(which);
    const struct mapping *failed = physical ? unmap_until(physical, NULL, &status) : NULL;
    if (status != CUDA_SUCCESS)
        map_until(physical, failed, &again);
    else if (physical)
        cuMemRelease(physical->memory), physical->memory = 0;
    pthread_mutex_unlock(&physical_lock);
    return !physical ? CUDA_ERROR_INVALID_VALUE : status;
}

CUresult cuda_physical_returns(uint64_t which) {
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(which);
    /* It may be there already, with any content, where it did not leave again after another piece had no room. */
    int is_there = physical && physical->memory;
    CUresult status = is_there   ? CUDA_SUCCESS
                      : physical ? cuMemCreate(&physical->memory, physical->bytes, &physical->property, 0)
                                 : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS && !is_there) {
        const struct mapping *failed = map_until(physical, NULL, &status);
        CUresult again = CUDA_SUCCESS;
        if (status != CUDA_SUCCESS) {
            unmap_until(physical, failed, &again);
            cuMemRelease(physical->memory);
            physical->memory = 0;
        }
    }
    pthread_mutex_unlock(&physical_lock);
    return status;
}
