/* Allocations of other processes: a handle says in which process's file of device memory they lie, and where. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "memory.h"

enum { PAGE = 4096, GRANULE = 2 << 20 };

struct handle {
    char mark[8];
    int process, file, device; /* as the machine numbers it: processes may see others */
    size_t offset, size;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle fits");

static const char mark[8] = "refcuda";

/* Opened memory: the number of opens, and the address of its mapping. */
struct opened {
    struct handle handle;
    CUdeviceptr reserved, address;
    size_t bytes;
    char *mapped;
    unsigned count;
    struct opened *next;
};

static struct opened *opened;

CUresult cuIpcGetMemHandle(CUipcMemHandle *result, CUdeviceptr address)
{
    struct block *block = memory_find(address);
    struct handle handle = {.process = getpid()};

    if (!result || !block || !memory_file(address, &handle.file, &handle.offset))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(handle.mark, mark, sizeof(mark));
    handle.device = devices[block->device].number;
    handle.size = block->size;
    memset(result, 0, sizeof(*result));
    memcpy(result, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

static char *map(const struct handle *handle, size_t bytes)
{
    char path[64];
    int file;
    char *mapped;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->process, handle->file);
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(handle->offset & -(size_t)PAGE));
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static CUresult enter(struct opened *entry)
{
    size_t within = entry->handle.offset % PAGE;
    struct block block = {
        .size = entry->handle.size, .kind = BLOCK_MAPPED, .device = device_with_number(entry->handle.device), .accessible = true, .devices = ~0u,
    };
    CUresult result;

    entry->bytes = (within + entry->handle.size + GRANULE - 1) / GRANULE * GRANULE;
    result = cuMemAddressReserve(&entry->reserved, entry->bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    entry->mapped = map(&entry->handle, entry->bytes);
    entry->address = block.start = entry->reserved + within;
    block.backing = entry->mapped + within;
    if (entry->mapped && memory_add(&block))
        return CUDA_SUCCESS;
    if (entry->mapped)
        munmap(entry->mapped, entry->bytes);
    cuMemAddressFree(entry->reserved, entry->bytes);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle value, unsigned flags)
{
    CUcontext context;
    CUresult result = address && flags <= CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;
    struct handle handle;
    struct opened *entry = opened;

    memcpy(&handle, &value, sizeof(handle));
    if (result != CUDA_SUCCESS)
        return result;
    if (memcmp(handle.mark, mark, sizeof(mark)) != 0 || !device_valid(device_with_number(handle.device)))
        return CUDA_ERROR_INVALID_VALUE;
    while (entry && memcmp(&entry->handle, &handle, sizeof(handle)) != 0)
        entry = entry->next;
    if (!entry) {
        entry = calloc(1, sizeof(*entry));
        if (!entry)
            return CUDA_ERROR_OUT_OF_MEMORY;
        entry->handle = handle;
        result = enter(entry);
        if (result != CUDA_SUCCESS) {
            free(entry);
            return result;
        }
        entry->next = opened;
        opened = entry;
    }
    entry->count++;
    *address = entry->address;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct opened **link = &opened, *entry;

    while (*link && (*link)->address != address)
        link = &(*link)->next;
    entry = *link;
    if (!entry)
        return CUDA_ERROR_INVALID_VALUE;
    if (--entry->count)
        return CUDA_SUCCESS;
    for (int i = 0; i < device_count; i++)
        context_drain(devices[i].primary);
    memory_remove(entry->address);
    munmap(entry->mapped, entry->bytes);
    cuMemAddressFree(entry->reserved, entry->bytes);
    *link = entry->next;
    free(entry);
    return CUDA_SUCCESS;
}
