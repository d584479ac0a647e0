/* Physical memory that an application maps itself: who still uses it. It is charged to the tenant until its handle is
 * released and the last mapping of it is gone. */
#include "moving.h"
#include "pieces.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* reservations.c */
int cuda_may_map(CUdeviceptr base, size_t bytes);

/* What the application's handle stands for, so that the memory behind it can leave the device and return. */
struct physical {
    /* The only references to what the driver has. */
    struct cuda_memory memory;
    uint64_t number;
    /* Of another process. */
    int imported;
    /* Handles that the application has of it. */
    unsigned int handles;
    unsigned int mappings;
    struct physical *next;
};

struct mapping {
    CUdeviceptr base;
    size_t bytes;
    struct physical *of;
    /* By piece of the memory, while it is out: what each device may do with it. */
    unsigned char (*access)[CUDA_MOST_PLACES];
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

/* With the lock: one more handle of that memory, which it takes; 0: there is no memory to remember it. */
static CUmemGenericAllocationHandle handle_of(struct cuda_memory *memory, int imported) {
    static uint64_t numbers = (uint64_t)1 << 63;
    struct physical *physical = physicals;
    /* A driver may answer the handle that is there when memory of this process comes back to it. */
    while (physical && physical->memory.pieces[0].memory != memory->pieces[0].memory)
        physical = physical->next;
    if (physical) {
        cuda_release_memory(memory);
    } else if ((physical = calloc(1, sizeof *physical))) {
        *physical = (struct physical){.memory = *memory, .number = numbers++, .imported = imported, .next = physicals};
        physicals = physical;
    } else {
        cuda_release_memory(memory);
        return 0;
    }
    physical->handles++;
    return (uintptr_t)physical;
}

static CUresult tell_handle(CUmemGenericAllocationHandle *handle, struct cuda_memory *memory, int imported) {
    pthread_mutex_lock(&physical_lock);
    *handle = handle_of(memory, imported);
    pthread_mutex_unlock(&physical_lock);
    return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult create_physical(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *property,
                                unsigned long long flags) {
    CUmemAllocationProp own = *property;
    struct cuda_memory memory;
    if (!handle || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_is_offerable(property->location.id))
        own.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CUresult status = cuda_create_memory(&memory, &own, bytes);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && cuda_make_room(property->location.id, bytes))
        status = cuda_create_memory(&memory, &own, bytes);
    return status == CUDA_SUCCESS ? tell_handle(handle, &memory, 0) : status;
}

void *cuda_create_physical_function(void) {
    return (void *)create_physical;
}

/* With the lock. */
static CUresult end_if_unused(struct physical *physical) {
    if (physical->handles || physical->mappings)
        return CUDA_SUCCESS;
    struct physical **link = &physicals;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    aviary_charge_return(physical->number);
    CUresult status = cuda_release_memory(&physical->memory);
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
        *property = physical->memory.property;
    pthread_mutex_unlock(&physical_lock);
    return physical && property ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void *cuda_physical_properties_function(void) {
    return (void *)physical_properties;
}

/* ---- Of and for other processes ---------------------------------------------------------------- */

static CUresult export_physical(CUmemGenericAllocationHandle handle, aviary_shared_name *name) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_physical(handle);
    if (physical && name)
        status = cuda_offer_memory(&physical->memory);
    if (status == CUDA_SUCCESS)
        cuda_tell_offer_name(&physical->memory.offer, name);
    pthread_mutex_unlock(&physical_lock);
    return status;
}

void *cuda_export_function(void) {
    return (void *)export_physical;
}

static CUresult import_physical(CUmemGenericAllocationHandle *handle, const aviary_shared_name *name) {
    struct cuda_memory memory;
    (void)name;
    CUresult status = handle ? cuda_import_fetched(&memory) : CUDA_ERROR_INVALID_VALUE;
    return status == CUDA_SUCCESS ? tell_handle(handle, &memory, 1) : status;
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
        status = cuda_map_memory(&physical->memory, base, bytes, offset, flags);
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

/* With the lock: true if the range is of whole mappings, with nothing between them. Memory in pieces is one mapping for the application,
 * and several for the driver, which would take a part of them away. */
static int are_whole(CUdeviceptr base, size_t bytes) {
    size_t covered = 0;
    for (const struct mapping *mapping = mappings; mapping; mapping = mapping->next) {
        int begins_in = mapping->base >= base && mapping->base - base < bytes;
        if (!begins_in && (mapping->base > base || base - mapping->base >= mapping->bytes))
            continue;
        if (!begins_in || mapping->bytes > bytes - (mapping->base - base))
            return 0;
        covered += mapping->bytes;
    }
    return covered == bytes;
}

/* Access is for whole mappings, too. */
int cuda_may_allow(CUdeviceptr base, size_t bytes) {
    pthread_mutex_lock(&physical_lock);
    int may = are_whole(base, bytes);
    pthread_mutex_unlock(&physical_lock);
    return may;
}

/* With the lock. */
static void drop_mappings(CUdeviceptr base, size_t bytes) {
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *mapping = *link;
        if (mapping->base < base || mapping->base - base >= bytes) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        mapping->of->mappings--;
        end_if_unused(mapping->of);
        free(mapping->access);
        free(mapping);
    }
}

static CUresult unmap_physical(CUdeviceptr base, size_t bytes) {
    pthread_mutex_lock(&physical_lock);
    CUresult status = bytes && are_whole(base, bytes) ? cuMemUnmap(base, bytes) : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS)
        drop_mappings(base, bytes);
    pthread_mutex_unlock(&physical_lock);
    return status;
}

void *cuda_unmap_function(void) {
    return (void *)unmap_physical;
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

static CUmemLocation place_of(int device) {
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUdeviceptr place_in(const struct mapping *mapping, size_t piece) {
    return mapping->base + piece * mapping->of->memory.piece_bytes;
}

/* Of a piece, so much of it; 0: it is not in that mapping. */
static size_t mapped_bytes(const struct mapping *mapping, size_t piece) {
    size_t offset = piece * mapping->of->memory.piece_bytes, whole = cuda_piece_size(&mapping->of->memory, piece);
    size_t left = offset < mapping->bytes ? mapping->bytes - offset : 0;
    return left < whole ? left : whole;
}

/* True if what is there of it can be copied. */
static int may_copy(const struct mapping *mapping) {
    const struct cuda_memory *memory = &mapping->of->memory;
    for (size_t i = 0; i < memory->count; i++) {
        unsigned long long access = 0;
        if (memory->pieces[i].memory
            && (cuMemGetAccess(&access, &memory->property.location, place_in(mapping, i)) != CUDA_SUCCESS
                || access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return 0;
    }
    return 1;
}

/* With the lock: a mapping of all of it from which it can be copied; NULL: the memory stays, as nobody could say what is in it, or
 * another process has it. */
static const struct mapping *whole_mapping(const struct physical *physical) {
    if (physical->imported || physical->memory.offer.stands)
        return NULL;
    for (const struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (mapping->of == physical && mapping->bytes == physical->memory.bytes && may_copy(mapping))
            return mapping;
    return NULL;
}

size_t cuda_list_physical(CUdevice device, struct cuda_evictable *list, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&physical_lock);
    for (const struct physical *physical = physicals; physical; physical = physical->next) {
        const struct cuda_memory *memory = &physical->memory;
        const struct mapping *whole = memory->property.location.id == device ? whole_mapping(physical) : NULL;
        for (size_t i = 0; whole && i < memory->count; i++)
            if (memory->pieces[i].memory && count++ < room)
                list[count - 1] =
                    (struct cuda_evictable){place_in(whole, i), cuda_piece_size(memory, i), (uintptr_t)physical, i};
    }
    pthread_mutex_unlock(&physical_lock);
    return count;
}

static CUresult unmap_one(struct mapping *mapping, size_t piece) {
    if (!mapping->access)
        mapping->access = calloc(mapping->of->memory.count, sizeof *mapping->access);
    if (!mapping->access)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int count = 0;
    CUresult status = cuDeviceGetCount(&count);
    memset(mapping->access[piece], 0, sizeof mapping->access[piece]);
    for (int device = 0; status == CUDA_SUCCESS && device < count && device < CUDA_MOST_PLACES; device++) {
        CUmemLocation location = place_of(device);
        unsigned long long access = 0;
        int known = cuMemGetAccess(&access, &location, place_in(mapping, piece)) == CUDA_SUCCESS;
        mapping->access[piece][device] = known ? (unsigned char)access : 0;
    }
    return status == CUDA_SUCCESS ? cuMemUnmap(place_in(mapping, piece), mapped_bytes(mapping, piece)) : status;
}

static CUresult map_one(struct mapping *mapping, size_t piece) {
    CUdeviceptr base = place_in(mapping, piece);
    size_t bytes = mapped_bytes(mapping, piece);
    CUresult status = cuMemMap(base, bytes, 0, mapping->of->memory.pieces[piece].memory, 0);
    for (int device = 0; device < CUDA_MOST_PLACES && status == CUDA_SUCCESS; device++) {
        CUmemAccessDesc access = {place_of(device), (CUmemAccess_flags)mapping->access[piece][device]};
        if (!mapping->access[piece][device])
            continue;
        status = cuMemSetAccess(base, bytes, &access, 1);
        if (status != CUDA_SUCCESS)
            cuMemUnmap(base, bytes);
    }
    return status;
}

/* With the lock: does that in all mappings that have the piece, up to `end`; the one at which it failed, or `end`. */
static struct mapping *until(const struct physical *physical, size_t piece, const struct mapping *end,
                             CUresult (*act)(struct mapping *, size_t), CUresult *status) {
    struct mapping *mapping = mappings;
    for (; mapping != end; mapping = mapping->next)
        if (mapping->of == physical && mapped_bytes(mapping, piece) && (*status = act(mapping, piece)) != CUDA_SUCCESS)
            break;
    return mapping;
}

/* With the lock: what the list calls so; NULL: it does not. */
static struct physical *find_piece(uint64_t which, size_t piece) {
    struct physical *physical = find_physical(which);
    return physical && piece < physical->memory.count ? physical : NULL;
}

CUresult cuda_physical_leaves(uint64_t which, size_t piece) {
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_piece(which, piece);
    CUresult status = physical && physical->memory.pieces[piece].memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, again;
    const struct mapping *failed = status == CUDA_SUCCESS ? until(physical, piece, NULL, unmap_one, &status) : NULL;
    if (failed)
        until(physical, piece, failed, map_one, &again);
    else if (status == CUDA_SUCCESS)
        cuda_drop_piece(&physical->memory, piece);
    pthread_mutex_unlock(&physical_lock);
    return status;
}

CUresult cuda_physical_returns(uint64_t which, size_t piece) {
    pthread_mutex_lock(&physical_lock);
    struct physical *physical = find_piece(which, piece);
    /* It may be there already, with any content, where it did not leave again after another piece had no room. */
    int is_there = physical && physical->memory.pieces[piece].memory;
    CUresult status = is_there   ? CUDA_SUCCESS
                      : physical ? cuda_make_piece(&physical->memory, piece)
                                 : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS && !is_there) {
        CUresult again;
        const struct mapping *failed = until(physical, piece, NULL, map_one, &status);
        if (status != CUDA_SUCCESS) {
            until(physical, piece, failed, unmap_one, &again);
            cuda_drop_piece(&physical->memory, piece);
        }
    }
    pthread_mutex_unlock(&physical_lock);
    return status;
}
