/* Allocations of other processes, as cuIpcOpenMemHandle opens them: what that process's server offers is mapped as a whole,
 * once, and charged here as well. */
#include "pieces.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct opened {
    aviary_shared_name name;
    CUdeviceptr base;
    size_t bytes;
    CUdevice device;
    unsigned int count;
    /* Of what it is charged. */
    uint64_t number;
    int charged;
    struct opened *next;
};

static struct opened *opened;
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock. */
static struct opened *find_opened(const aviary_shared_name *name) {
    for (struct opened *o = opened; o; o = o->next)
        if (memcmp(&o->name, name, sizeof *name) == 0)
            return o;
    return NULL;
}

static struct opened **opened_at(CUdeviceptr pointer) {
    struct opened **link = &opened;
    while (*link && (pointer < (*link)->base || pointer - (*link)->base >= (*link)->bytes))
        link = &(*link)->next;
    return link;
}

/* Fetches it unless it is open: where the device memory lies that opening it adds. */
uint64_t cuda_ordinal_of_part(const aviary_memory_part *part) {
    cuda_drop_fetched();
    if (!part)
        return 0;
    pthread_mutex_lock(&opened_lock);
    int known = find_opened(&part->name) != NULL;
    pthread_mutex_unlock(&opened_lock);
    return known ? 0 : cuda_ordinal_of_offer(&part->name);
}

/* Every device that can reach the memory may. */
static CUresult allow_reachable(CUdeviceptr base, size_t bytes, int ordinal) {
    CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int count = 0;
    CUresult status = cuMemSetAccess(base, bytes, &access, 1);
    if (status != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return status;
    for (int device = 0; device < count; device++) {
        int reaches = 0;
        access.location.id = device;
        if (device != ordinal && cuDeviceCanAccessPeer(&reaches, device, ordinal) == CUDA_SUCCESS && reaches)
            cuMemSetAccess(base, bytes, &access, 1);
    }
    return CUDA_SUCCESS;
}

static CUresult map_opened(struct opened *made, const struct cuda_memory *memory) {
    CUresult status = cuda_reserve_for_application(&made->base, made->bytes, 0, 0, 0);
    if (status != CUDA_SUCCESS)
        return status;
    made->device = memory->property.location.id;
    status = cuda_map_memory(memory, made->base, made->bytes, 0, 0);
    if (status == CUDA_SUCCESS) {
        status = allow_reachable(made->base, made->bytes, made->device);
        if (status != CUDA_SUCCESS)
            cuMemUnmap(made->base, made->bytes);
    }
    if (status != CUDA_SUCCESS)
        cuda_end_reservation(made->base, made->bytes);
    return status;
}

static CUresult open_new(const aviary_memory_part *part, struct opened **result) {
    static uint64_t numbers = (uint64_t)1 << 62;
    struct cuda_memory memory;
    struct opened *made = calloc(1, sizeof *made);
    CUresult status = made ? cuda_import_fetched(&memory) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status == CUDA_SUCCESS) {
        *made = (struct opened){.name = part->name, .bytes = memory.bytes};
        status = map_opened(made, &memory);
        /* The mappings hold on to it. */
        cuda_release_memory(&memory);
    }
    if (status != CUDA_SUCCESS) {
        free(made);
        return status;
    }
    made->number = numbers++;
    made->next = opened;
    *result = opened = made;
    return CUDA_SUCCESS;
}

static CUresult open_memory(CUdeviceptr *pointer, CUdevice *device, const aviary_memory_part *part) {
    CUresult status = CUDA_SUCCESS;
    if (!pointer || !device || !part)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&opened_lock);
    struct opened *found = cuda_fetched.there ? NULL : find_opened(&part->name);
    /* The program says which part it is: what is not in the memory is not opened, as a call that fails is not charged. */
    if (cuda_fetched.there && (part->offset >= cuda_fetched.bytes || part->bytes > cuda_fetched.bytes - part->offset))
        cuda_drop_fetched();
    if (!found)
        status = cuda_fetched.there ? open_new(part, &found) : CUDA_ERROR_INVALID_VALUE;
    if (found && (part->offset >= found->bytes || part->bytes > found->bytes - part->offset))
        status = CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS) {
        found->count++;
        *pointer = found->base + part->offset;
        *device = found->device;
    }
    pthread_mutex_unlock(&opened_lock);
    return status;
}

void *cuda_open_function(void) {
    return (void *)open_memory;
}

void cuda_keep_opened(CUdeviceptr pointer) {
    pthread_mutex_lock(&opened_lock);
    struct opened *found = *opened_at(pointer);
    if (found && !found->charged) {
        aviary_charge_keep(found->number);
        found->charged = 1;
    }
    pthread_mutex_unlock(&opened_lock);
}

/* Waits, as the driver does, until nothing uses the memory. */
static CUresult close_memory(CUdeviceptr pointer) {
    CUresult status = cuCtxSynchronize();
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&opened_lock);
    struct opened **link = opened_at(pointer), *found = *link;
    if (!found) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else if (found->count > 1) {
        found->count--;
    } else if ((status = cuMemUnmap(found->base, found->bytes)) == CUDA_SUCCESS) {
        *link = found->next;
        cuda_end_reservation(found->base, found->bytes);
        aviary_charge_return(found->number);
        free(found);
    }
    pthread_mutex_unlock(&opened_lock);
    return status;
}

void *cuda_close_function(void) {
    return (void *)close_memory;
}
