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

/* What was in the host's memory the last time. No hashes: nobody knows. */
static struct cuda_hashed before[CUDA_MOST_PLACES];

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

static void forget_before(int device) {
    free(before[device].parts);
    free(before[device].hashes);
    before[device].parts = NULL;
    before[device].hashes = NULL;
    before[device].count = 0;
}

/* Of what is on the device again, or has not left. */
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

/* Of one device that is being brought back. */
struct bringing {
    int device;
    /* Parts of the list that were made, or were there. */
    size_t made;
    /* Of parts that were made, and of the one that is being made. */
    uint64_t bytes;
};

static CUresult part_comes(void *data, size_t part) {
    struct bringing *bringing = data;
    bringing->bytes += evicted[bringing->device].list[part].bytes;
    CUresult status = aviary_may_return(bringing->bytes) ? returns(&evicted[bringing->device].list[part]) : CUDA_ERROR_OUT_OF_MEMORY;
    bringing->made = status == CUDA_SUCCESS ? part + 1 : bringing->made;
    return status;
}

/* Makes memory for all that is out, and copies the content there. On failure all of it is out, as before. */
static CUresult bring_back(int device, const void *from) {
    struct bringing bringing = {device, 0, 0};
    CUresult status = cuda_copy_in(evicted[device].parts, evicted[device].count, from, part_comes, &bringing);
    if (status != CUDA_SUCCESS) {
        aviary_log("device memory does not return yet: the driver answers %d after %zu of %zu pieces", (int)status, bringing.made,
                   evicted[device].count);
        leave_again(device, bringing.made);
    }
    cuda_tell_copy_buffers();
    return status;
}

/* The first piece that differs is copied, and hashed by the processor, too; 0: the device cannot hash. */
static int hashes_are_right(int device, const struct cuda_hash *hashes, const unsigned char *same, char *host) {
    size_t number = 0;
    for (size_t i = 0; i < evicted[device].count; i++)
        for (uint64_t at = 0; at < evicted[device].parts[i].bytes; at += CUDA_PIECE_BYTES, number++) {
            uint64_t left = evicted[device].parts[i].bytes - at;
            size_t bytes = left < CUDA_PIECE_BYTES ? (size_t)left : CUDA_PIECE_BYTES;
            if (!same || !same[number]) {
                struct cuda_moved_part piece = evicted[device].parts[i];
                piece.pointer += at;
                piece.bytes = bytes;
                return cuda_copy_out(&piece, 1, host, NULL) == CUDA_SUCCESS && cuda_hash_is_right(&hashes[number], host, bytes);
            }
            host += bytes;
        }
    return 1;
}

/* What has been copied is remembered, for the next time; nothing is without hashes, which it takes. */
static void remember(int device, struct cuda_hash *hashes) {
    size_t count = evicted[device].count;
    forget_before(device);
    before[device].parts = hashes ? calloc(count ? count : 1, sizeof *before[device].parts) : NULL;
    if (!before[device].parts) {
        free(hashes);
        return;
    }
    for (size_t i = 0; i < count; i++)
        before[device].parts[i] = evicted[device].parts[i];
    before[device].count = count;
    before[device].hashes = hashes;
}

/* What has been found about what is to leave. */
struct leaving {
    /* NULL: nothing is known. */
    struct cuda_hash *hashes;
    /* By piece: the host has it already. NULL: it has none. */
    unsigned char *same;
};

static struct leaving compare(int device, CUcontext context, char *to) {
    size_t count = evicted[device].count, kept = aviary_keeps(to);
    struct leaving found = {cuda_hash_parts(context, evicted[device].parts, count), NULL};
    struct cuda_hashed now = {evicted[device].parts, count, found.hashes};
    if (kept && kept == cuda_bytes_of_parts(before[device].parts, before[device].count))
        found.same = cuda_pieces_unchanged(&now, &before[device]);
    if (found.hashes && !hashes_are_right(device, found.hashes, found.same, to)) {
        aviary_log("the device hashes memory wrongly: all of it is copied");
        free(found.hashes);
        free(found.same);
        return (struct leaving){NULL, NULL};
    }
    if (found.same)
        aviary_unchanged(cuda_bytes_of_same(evicted[device].parts, count, found.same));
    return found;
}

/* Gives a part back to the device. Answers the bytes that have left. */
static uint64_t leave_part(int device, size_t part) {
    CUresult status = leaves(&evicted[device].list[part]);
    evicted[device].parts[part].is_there = status != CUDA_SUCCESS;
    if (status == CUDA_SUCCESS)
        return evicted[device].parts[part].bytes;
    aviary_log("%zu bytes at %#llx stay on the device: the driver answers %d", (size_t)evicted[device].parts[part].bytes,
               (unsigned long long)evicted[device].parts[part].pointer, (int)status);
    return 0;
}

/* Parts are copied together until there are so many bytes: threads and the first and last copy of each cost the same for any number. */
static const uint64_t STEP_BYTES = (uint64_t)512 << 20;

/* Copies parts, but what the host has already, and gives them back, some at a time: others may have their place then. One whose copy
 * fails stays, with all that follow. Answers the bytes that have left. */
static uint64_t leave_in_steps(int device, char *to, const unsigned char *same) {
    struct cuda_moved_part *parts = evicted[device].parts;
    size_t count = evicted[device].count, first = 0;
    uint64_t left = 0;
    CUresult status = CUDA_SUCCESS;
    while (first < count && status == CUDA_SUCCESS) {
        uint64_t bytes = 0;
        size_t end = first;
        while (end < count && bytes < STEP_BYTES)
            bytes += parts[end++].bytes;
        size_t pieces = cuda_pieces_of(parts + first, end - first);
        status = cuda_copy_out(parts + first, end - first, to, same);
        for (size_t i = first; i < end && status == CUDA_SUCCESS; i++)
            left += leave_part(device, i);
        if (left && status == CUDA_SUCCESS)
            aviary_left(left);
        first = status == CUDA_SUCCESS ? end : first;
        to += bytes;
        same = same ? same + pieces : NULL;
    }
    if (first < count)
        aviary_log("%zu of %zu pieces stay on the device: copies fail with %d", count - first, count, (int)status);
    for (size_t i = first; i < count; i++)
        parts[i].is_there = 1;
    return left;
}

/* 0: all of it is gone from the device, but what the driver did not take back or copy. Else: nothing has changed. */
int cuda_evict(CUcontext context, void *to, size_t bytes) {
    int device = device_of(context);
    if (device < 0 || evicted[device].list)
        return 1;
    if (!list_evicted(device, context) || cuda_bytes_of_parts(evicted[device].parts, evicted[device].count) != bytes) {
        forget(device);
        return 1;
    }
    struct leaving found = compare(device, context, to);
    uint64_t left = leave_in_steps(device, to, found.same);
    free(found.same);
    /* Of what has stayed the host has no copy. */
    if (left != bytes) {
        free(found.hashes);
        found.hashes = NULL;
    }
    remember(device, found.hashes);
    cuda_tell_copy_buffers();
    if (!left && bytes)
        forget(device);
    return !left && bytes;
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
