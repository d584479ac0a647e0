/* Addresses reserved by the application, and physical memory mapped there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "memory.h"
#include "stream.h"

enum { PAGE = 2 << 20 };

struct physical {
    struct object object;
    size_t size;
    CUmemAllocationProp properties;
    int file;
    unsigned handles; /* how often it must be released */
};

static struct reservation *reservations;
static pthread_mutex_t reservations_lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr next_address = 0x0a0000000000;

struct reservation *reservation_find(CUdeviceptr address)
{
    struct reservation *reservation;

    pthread_mutex_lock(&reservations_lock);
    for (reservation = reservations; reservation; reservation = reservation->next)
        if (address >= reservation->start && address - reservation->start < reservation->size)
            break;
    pthread_mutex_unlock(&reservations_lock);
    return reservation;
}

static void destroy(void *object)
{
    struct physical *physical = object;

    device_give(&devices[physical->properties.location.id], physical->size);
    close(physical->file);
}

/* --- reservations --- */

static void *reserve(CUdeviceptr address, size_t size)
{
    void *result = mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

    if (result == MAP_FAILED)
        return NULL;
    if ((CUdeviceptr)(uintptr_t)result == address)
        return result;
    munmap(result, size);
    return NULL;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
    const CUdeviceptr lowest = 0x100000000000;
    struct reservation *reservation;
    void *taken = NULL;

    if (!address || !size || size % PAGE || size > (size_t)1 << 46 || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < PAGE)
        alignment = PAGE;
    reservation = calloc(1, sizeof(*reservation));
    if (!reservation)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* A hint that cannot be met is no error. */
    if (wanted >= lowest && wanted % alignment == 0)
        taken = reserve(wanted, size);
    for (int attempt = 0; !taken && attempt < 64; attempt++) {
        CUdeviceptr start = (next_address + alignment - 1) / alignment * alignment;
        taken = reserve(start, size);
        next_address = start + size;
    }
    /* Large ones not where programs have their memory. */
    reservation->backing = mmap((char *)taken + 0x210000000000, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!taken || reservation->backing == MAP_FAILED) {
        if (taken)
            munmap(taken, size);
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    reservation->start = *address = (CUdeviceptr)(uintptr_t)taken;
    reservation->size = size;
    pthread_mutex_lock(&reservations_lock);
    reservation->next = reservations;
    reservations = reservation;
    pthread_mutex_unlock(&reservations_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    struct reservation *reservation = reservation_find(address), **link;

    if (!reservation || reservation->start != address || reservation->size != size)
        return CUDA_ERROR_INVALID_VALUE;
    for (CUdeviceptr at = address; at < address + size; at += PAGE)
        if (memory_find(at))
            return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&reservations_lock);
    for (link = &reservations; *link != reservation; link = &(*link)->next)
        ;
    *link = reservation->next;
    pthread_mutex_unlock(&reservations_lock);
    munmap((void *)address, size);
    munmap(reservation->backing, size);
    free(reservation);
    return CUDA_SUCCESS;
}

/* --- physical memory --- */

#define FILE_NAME "refdriver-"

static struct physical *physical_of(CUmemGenericAllocationHandle handle) { return object_check((void *)(uintptr_t)handle, KIND_PHYSICAL); }

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE
        || (properties->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_NOT_SUPPORTED;
    return device_valid(properties->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags which)
{
    CUresult result = granularity && (unsigned)which <= 1 ? check_properties(properties) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *granularity = PAGE;
    return result;
}

/* Takes the file, also when it fails. */
static CUresult make(CUmemGenericAllocationHandle *handle, int file, size_t size, const CUmemAllocationProp *properties)
{
    struct device *device = &devices[properties->location.id];
    bool fits = file >= 0 && device_take(device, size);
    struct physical *physical = fits ? object_new(KIND_PHYSICAL, sizeof(*physical), destroy) : NULL;

    if (!physical) {
        if (fits)
            device_give(device, size);
        close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->file = file;
    physical->size = size;
    physical->properties = *properties;
    physical->handles = 1;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUresult result = handle && size && size % PAGE == 0 && !flags ? check_properties(properties) : CUDA_ERROR_INVALID_VALUE;
    char name[32];
    int file;

    if (result != CUDA_SUCCESS)
        return result;
    /* An importer reads the device of the memory in the name. */
    snprintf(name, sizeof(name), FILE_NAME "%d", devices[properties->location.id].number);
    file = memfd_create(name, MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)size) != 0) {
        close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return make(handle, file, size, properties);
}

CUresult cuMemExportToShareableHandle(void *result, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    struct physical *physical = physical_of(handle);

    if (!result || !physical || flags || !(physical->properties.requestedHandleTypes & type))
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)result = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
    return *(int *)result >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *value, CUmemAllocationHandleType type)
{
    int file = (int)(uintptr_t)value, number;
    char link[64], name[64] = "";
    struct stat status;
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };

    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    if (fstat(file, &status) != 0 || readlink(link, name, sizeof(name) - 1) < 0 || sscanf(name, "/memfd:" FILE_NAME "%d", &number) != 1 ||
        !device_valid(device_with_number(number)))
        return CUDA_ERROR_UNKNOWN;
    properties.location.id = device_with_number(number);
    return make(handle, fcntl(file, F_DUPFD_CLOEXEC, 0), (size_t)status.st_size, &properties);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = physical_of(handle);

    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    /* Mappings have references of their own. */
    if (--physical->handles == 0)
        object_end(physical);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    struct block *block = memory_find((CUdeviceptr)(uintptr_t)address);

    if (!handle || !block || block->kind != BLOCK_MAPPED || !block->physical)
        return CUDA_ERROR_INVALID_VALUE;
    if (block->physical->handles++ == 0)
        object_revive(block->physical);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)block->physical;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    struct physical *physical = physical_of(handle);

    if (!physical || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = physical->properties;
    return CUDA_SUCCESS;
}

/* --- mapping --- */

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct reservation *reservation = reservation_find(address);
    struct physical *physical = physical_of(handle);
    struct block block = {.start = address, .size = size, .kind = BLOCK_MAPPED};

    if (!reservation || !physical || flags || address % PAGE || !size || size % PAGE || offset ||
        size > reservation->size - (address - reservation->start) || size > physical->size)
        return CUDA_ERROR_INVALID_VALUE;
    for (CUdeviceptr at = address; at < address + size; at += PAGE)
        if (memory_find(at))
            return CUDA_ERROR_INVALID_VALUE;
    block.backing = reservation->backing + (address - reservation->start);
    block.device = physical->properties.location.id;
    block.physical = physical;
    if (mmap(block.backing, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->file, 0) == MAP_FAILED || !memory_add(&block))
        return CUDA_ERROR_OUT_OF_MEMORY;
    object_hold(physical);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUdeviceptr end = address + size;

    for (CUdeviceptr at = address; at < end;) {
        struct block *block = memory_find(at);
        if (!block || !block->physical || block->start != at || block->size > end - at)
            return CUDA_ERROR_INVALID_VALUE;
        at += block->size;
    }
    for (int i = 0; i < device_count; i++)
        context_drain(devices[i].primary);
    while (address < end) {
        struct block *block = memory_find(address), old;
        if (!block)
            return CUDA_ERROR_INVALID_VALUE;
        old = *block;
        memory_remove(address);
        mmap(old.backing, old.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        object_drop(old.physical);
        address += old.size;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    CUdeviceptr end = address + size;

    if (!access || !count || !size)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(access[i].location.id))
            return CUDA_ERROR_INVALID_VALUE;
    for (CUdeviceptr at = address; at < end;) {
        struct block *block = memory_find(at);
        /* An H200 takes whole mappings only. */
        if (!block || block->kind != BLOCK_MAPPED || block->start != at || block->size > end - at)
            return CUDA_ERROR_INVALID_VALUE;
        at = block->start + block->size;
    }
    for (CUdeviceptr at = address; at < end;) {
        struct block *block = memory_find(at);
        for (size_t i = 0; i < count; i++) {
            unsigned bit = 1u << access[i].location.id;
            block->devices = access[i].flags ? block->devices | bit : block->devices & ~bit;
        }
        block->accessible = block->devices != 0;
        at = block->start + block->size;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    struct block *block = memory_find(address);

    if (!flags || !location || !block || block->kind != BLOCK_MAPPED || !device_valid(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = block->devices >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
