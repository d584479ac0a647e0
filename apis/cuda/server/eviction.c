/* A device's memory of this session leaves for memory of the host and returns to its addresses, while contexts, modules, graphs and
 * streams stay. No call is under way, and all work has ended. Memory that other processes have, arrays, pools, managed memory and
 * what contexts take for themselves stay on the device. */
#include "moving.h"
#include <stdlib.h>

/* What has left a device. `is_there` of a part: the driver did not take its memory back, and it stayed. */
static struct {
    struct cuda_evictable *list;
    struct cuda_moved_part *parts;
    size_t count;
} evicted[CUDA_MOST_PLACES];

/* Of a context through which memory of its device leaves: one of each device; -1: not this one. */
static int device_of(CUcontext context) {
    for (int device = 0; device < CUDA_MOST_PLACES; device++)
        if (context && cuda_context_on(device) == context)
            return device;
    return -1;
}

static size_t list_all(int device, struct cuda_evictable *list, size_t room) {
    size_t chunks = cuda_list_chunks(device, list, room);
    return chunks + cuda_list_physical(device, chunks < room ? list + chunks : NULL, chunks < room ? room - chunks : 0);
}

uint64_t cuda_evictable_bytes(CUcontext context) {
    int device = device_of(context);
    size_t count = device < 0 ? 0 : list_all(device, NULL, 0);
    struct cuda_evictable *list = count ? calloc(count, sizeof *list) : NULL;
    uint64_t bytes = 0;
    for (size_t i = 0, there = list ? list_all(device, list, count) : 0; i < count && i < there; i++)
        bytes += list[i].bytes;
    free(list);
    return bytes;
}

/* As accounts have it. */
const char *cuda_evictable_device(CUcontext context) {
    int device = device_of(context);
    return device < 0 ? NULL : cuda_ordinal_name(cuda_ordinal_of_device(device), 0);
}

static void forget(int device) {
    free(evicted[device].list);
    free(evicted[device].parts);
    evicted[device].list = NULL;
    evicted[device].parts = NULL;
    evicted[device].count = 0;
}

/* False: there is no memory for the list. */
static int list_evicted(int device, CUcontext context) {
    size_t count = list_all(device, NULL, 0);
    evicted[device].list = calloc(count ? count : 1, sizeof *evicted[device].list);
    evicted[device].parts = calloc(count ? count : 1, sizeof *evicted[device].parts);
    if (!evicted[device].list || !evicted[device].parts)
        return 0;
    evicted[device].count = list_all(device, evicted[device].list, count);
    for (size_t i = 0; i < evicted[device].count; i++)
        evicted[device].parts[i] =
            (struct cuda_moved_part){context, evicted[device].list[i].base, evicted[device].list[i].bytes, 0};
    return evicted[device].count <= count;
}

static CUresult leaves(const struct cuda_evictable *memory) {
    return memory->which ? cuda_physical_leaves(memory->which) : cuda_chunk_leaves(memory->base);
}

static CUresult returns(const struct cuda_evictable *memory) {
    return memory->which ? cuda_physical_returns(memory->which) : cuda_chunk_returns(memory->base);
}

/* The first `count` of what has left, which is empty, leaves again. What the driver does not take back is used at the next return. */
static void leave_again(int device, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!evicted[device].parts[i].is_there)
            leaves(&evicted[device].list[i]);
}

/* Makes memory for all that is out, and copies the content there. On failure all of it is out, as before. */
static CUresult bring_back(int device, const void *from) {
    CUresult status = CUDA_SUCCESS;
    size_t count = 0;
    for (; count < evicted[device].count && status == CUDA_SUCCESS; count++)
        if (!evicted[device].parts[count].is_there)
            status = returns(&evicted[device].list[count]);
    size_t made = status == CUDA_SUCCESS ? count : count - 1;
    /* The driver reads from there only. */
    if (status == CUDA_SUCCESS)
        status = cuda_copy_parts(evicted[device].parts, evicted[device].count, (char *)(uintptr_t)from, 1);
    if (status != CUDA_SUCCESS) {
        aviary_log("device memory does not return yet: the driver answers %d after %zu of %zu pieces", (int)status, made,
                   evicted[device].count);
        leave_again(device, made);
    }
    return status;
}

/* 0: all of it is gone from the device, but what the driver neither took back nor let return. Else: nothing has changed. */
int cuda_evict(CUcontext context, void *to, size_t bytes) {
    int device = device_of(context), stayed = 0;
    if (device < 0 || evicted[device].list)
        return 1;
    if (!list_evicted(device, context) || cuda_bytes_of_parts(evicted[device].parts, evicted[device].count) != bytes
        || cuda_copy_parts(evicted[device].parts, evicted[device].count, to, 0) != CUDA_SUCCESS) {
        forget(device);
        return 1;
    }
    for (size_t i = 0; i < evicted[device].count; i++) {
        CUresult status = leaves(&evicted[device].list[i]);
        evicted[device].parts[i].is_there = status != CUDA_SUCCESS;
        stayed |= status != CUDA_SUCCESS;
        if (status != CUDA_SUCCESS)
            aviary_log("%zu bytes at %#llx stay on the device: the driver answers %d", (size_t)evicted[device].parts[i].bytes,
                       (unsigned long long)evicted[device].parts[i].pointer, (int)status);
    }
    /* Others are given what has left: all of it, or nothing. */
    if (stayed && bring_back(device, to) == CUDA_SUCCESS) {
        forget(device);
        return 1;
    }
    return 0;
}

/* 0: it is there, with the content. Else: it is out, as before. */
int cuda_return(CUcontext context, const void *from, size_t bytes) {
    int device = device_of(context);
    if (device < 0 || !evicted[device].list || cuda_bytes_of_parts(evicted[device].parts, evicted[device].count) != bytes
        || bring_back(device, from) != CUDA_SUCCESS)
        return 1;
    forget(device);
    return 0;
}
