/* A device's memory of this session leaves for memory of the host and returns to its addresses, while contexts, modules, graphs and
 * streams stay. No call is under way, and all work has ended. Memory that other processes have, arrays, pools, managed memory and
 * what contexts take for themselves stay on the device. */
#include "moving.h"
#include <stdlib.h>
#include <string.h>

/* What can leave a device, while some of it is out. `is_there` of a part: it did not have to leave yet, or the driver did not take its
 * memory back. */
static struct {
    struct cuda_evictable *list;
    struct cuda_moved_part *parts;
    size_t count;
} evicted[CUDA_MOST_PLACES];

/* What was to leave the last time, with the hashes of then. No hashes: nobody knows. */
static struct cuda_hashed before[CUDA_MOST_PLACES];
/* By piece of that: the host has the content with this hash. */
static unsigned char *host_has[CUDA_MOST_PLACES];

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
    free(host_has[device]);
    before[device].parts = NULL;
    before[device].hashes = NULL;
    before[device].count = 0;
    host_has[device] = NULL;
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
            (struct cuda_moved_part){context, evicted[device].list[i].base, evicted[device].list[i].bytes, 1};
    return evicted[device].count <= count;
}

static CUresult leaves(const struct cuda_evictable *memory) {
    return memory->which ? cuda_physical_leaves(memory->which, memory->piece) : cuda_chunk_leaves(memory->base, memory->piece);
}

static CUresult returns(const struct cuda_evictable *memory) {
    return memory->which ? cuda_physical_returns(memory->which, memory->piece) : cuda_chunk_returns(memory->base, memory->piece);
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
                struct cuda_moved_part piece = {evicted[device].parts[i].context, evicted[device].parts[i].pointer + at, bytes, 0};
                return cuda_copy_out(&piece, 1, host, NULL) == CUDA_SUCCESS && cuda_hash_is_right(&hashes[number], host, bytes);
            }
            host += bytes;
        }
    return 1;
}

/* Takes hashes of all that can leave, and what of it the host has already; without hashes nothing is remembered. */
static void remember(int device, struct cuda_hash *hashes, unsigned char *same) {
    size_t count = evicted[device].count, pieces = cuda_pieces_of(evicted[device].parts, count);
    forget_before(device);
    before[device].parts = hashes ? calloc(count ? count : 1, sizeof *before[device].parts) : NULL;
    host_has[device] = same ? same : hashes && pieces ? calloc(pieces, 1) : NULL;
    if (!before[device].parts || !host_has[device]) {
        free(hashes);
        forget_before(device);
        return;
    }
    for (size_t i = 0; i < count; i++)
        before[device].parts[i] = evicted[device].parts[i];
    before[device].count = count;
    before[device].hashes = hashes;
}

/* Finds out which pieces the host has already. */
static void compare(int device, CUcontext context, char *to) {
    size_t count = evicted[device].count, kept = aviary_keeps(to);
    struct cuda_hash *hashes = cuda_hash_parts(context, evicted[device].parts, count);
    struct cuda_hashed now = {evicted[device].parts, count, hashes};
    unsigned char *same = NULL;
    if (kept && kept == cuda_bytes_of_parts(before[device].parts, before[device].count))
        same = cuda_pieces_unchanged(&now, &before[device], host_has[device]);
    if (hashes && !hashes_are_right(device, hashes, same, to)) {
        aviary_log("the device hashes memory wrongly: all of it is copied");
        free(hashes);
        free(same);
        hashes = NULL, same = NULL;
    }
    remember(device, hashes, same);
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

/* True if the host has all of a part, whose first piece has this number. */
static int host_has_part(int device, size_t part, size_t piece) {
    size_t pieces = cuda_pieces_of(&evicted[device].parts[part], 1), known = 0;
    while (host_has[device] && known < pieces && host_has[device][piece + known])
        known++;
    return known == pieces;
}

/* Parts that leave, so that at least so many bytes do: those first that need not be copied. A copy of the list, in which the others are
 * there, as for copies they are passed over; NULL: there is no memory for it. */
static struct cuda_moved_part *choose(int device, uint64_t bytes) {
    size_t count = evicted[device].count;
    struct cuda_moved_part *chosen = calloc(count ? count : 1, sizeof *chosen);
    uint64_t leaves = 0;
    for (size_t i = 0; chosen && i < count; i++)
        chosen[i] = evicted[device].parts[i], chosen[i].is_there = 1;
    for (int copied = 0; chosen && copied <= 1; copied++)
        for (size_t i = 0, piece = 0; i < count; piece += cuda_pieces_of(&evicted[device].parts[i], 1), i++) {
            if (leaves >= bytes || !evicted[device].parts[i].is_there || !chosen[i].is_there
                || (!copied && !host_has_part(device, i, piece)))
                continue;
            chosen[i].is_there = 0;
            leaves += chosen[i].bytes;
        }
    /* A large one that came last may be enough without smaller ones. */
    for (size_t i = count; chosen && i-- > 0;)
        if (!chosen[i].is_there && leaves - chosen[i].bytes >= bytes) {
            chosen[i].is_there = 1;
            leaves -= chosen[i].bytes;
        }
    return chosen;
}

/* Parts are copied together until there are so many bytes: threads and the first and last copy of each cost the same for any number. */
static const uint64_t STEP_BYTES = (uint64_t)512 << 20;

/* Copies chosen parts, but what the host has already, and gives them back, some at a time: others may have their place then. One whose
 * copy fails stays, with all that follow. Answers the bytes that have left. */
static uint64_t leave_in_steps(int device, const struct cuda_moved_part *chosen, char *to) {
    size_t count = evicted[device].count, first = 0, piece = 0;
    uint64_t left = 0;
    CUresult status = CUDA_SUCCESS;
    while (first < count && status == CUDA_SUCCESS) {
        uint64_t bytes = 0;
        size_t end = first;
        while (end < count && bytes < STEP_BYTES)
            bytes += chosen[end].is_there ? 0 : chosen[end].bytes, end++;
        status = bytes ? cuda_copy_out(chosen + first, end - first, to, host_has[device] ? host_has[device] + piece : NULL) : CUDA_SUCCESS;
        for (; first < end && status == CUDA_SUCCESS; first++) {
            size_t pieces = cuda_pieces_of(&chosen[first], 1);
            if (!chosen[first].is_there && host_has[device])
                memset(host_has[device] + piece, 1, pieces);
            left += chosen[first].is_there ? 0 : leave_part(device, first);
            piece += pieces;
            to += chosen[first].bytes;
        }
        if (left && status == CUDA_SUCCESS)
            aviary_left(left);
    }
    if (status != CUDA_SUCCESS)
        aviary_log("%zu of %zu pieces stay on the device: copies fail with %d", count - first, count, (int)status);
    return left;
}

/* Bytes of chosen parts that the host has already. */
static uint64_t unchanged_of(int device, const struct cuda_moved_part *chosen) {
    uint64_t bytes = 0;
    for (size_t i = 0, piece = 0; host_has[device] && i < evicted[device].count; piece += cuda_pieces_of(&chosen[i], 1), i++)
        bytes += chosen[i].is_there ? 0 : cuda_bytes_of_same(&chosen[i], 1, host_has[device] + piece);
    return bytes;
}

/* 0: as much as must has left the device, or what the driver took back and copied. Else: nothing has changed. While some of it is out,
 * more leaves. */
int cuda_evict(CUcontext context, void *to, size_t bytes) {
    int device = device_of(context), is_first = device >= 0 && !evicted[device].list;
    if (device < 0)
        return 1;
    if ((is_first && !list_evicted(device, context)) || cuda_bytes_of_parts(evicted[device].parts, evicted[device].count) != bytes) {
        if (is_first)
            forget(device);
        return 1;
    }
    if (is_first)
        compare(device, context, to);
    struct cuda_moved_part *chosen = choose(device, aviary_must_leave());
    if (chosen)
        aviary_unchanged(unchanged_of(device, chosen));
    uint64_t left = chosen ? leave_in_steps(device, chosen, to) : 0;
    free(chosen);
    cuda_tell_copy_buffers();
    if (!left && bytes && is_first)
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
