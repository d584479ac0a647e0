/* The allocations in memory that the server places: address and length, as the application asked for them. Several share a
 * chunk of the driver's, which would let a copy or a fill run from one into the next; so each address that a guest names for
 * one is looked up here. Memory that lies elsewhere (pools, variables, what the application maps itself) the driver made as
 * the application asked for it, and checks itself. */
#include "server.h"
#include <pthread.h>
#include <search.h>
#include <stdint.h>
#include <stdlib.h>

struct allocation {
    CUdeviceptr base;
    size_t bytes;
};

/* A balanced tree; ranges that overlap are equal, and no two in it are. */
static void *allocations;
static pthread_rwlock_t allocations_lock = PTHREAD_RWLOCK_INITIALIZER;

static int compare(const void *left, const void *right) {
    const struct allocation *a = left, *b = right;
    if (a->base + a->bytes <= b->base)
        return -1;
    return b->base + b->bytes <= a->base;
}

/* 0: there is no memory to remember it. */
int cuda_keep_allocation(CUdeviceptr base, size_t bytes) {
    struct allocation *made = malloc(sizeof *made);
    int kept = 0;
    if (!made)
        return 0;
    *made = (struct allocation){base, bytes};
    pthread_rwlock_wrlock(&allocations_lock);
    struct allocation **found = tsearch(made, &allocations, compare);
    kept = found && *found == made;
    pthread_rwlock_unlock(&allocations_lock);
    if (!kept)
        free(made);
    return kept;
}

/* As the application asked for it; 0: nothing begins there. */
size_t cuda_allocated_bytes(CUdeviceptr base) {
    const struct allocation key = {base, 1};
    pthread_rwlock_rdlock(&allocations_lock);
    struct allocation *const *found = tfind(&key, &allocations, compare);
    size_t bytes = found && (*found)->base == base ? (*found)->bytes : 0;
    pthread_rwlock_unlock(&allocations_lock);
    return bytes;
}

void cuda_drop_allocation(CUdeviceptr base) {
    const struct allocation key = {base, 1};
    pthread_rwlock_wrlock(&allocations_lock);
    struct allocation **found = tfind(&key, &allocations, compare), *ended = found ? *found : NULL;
    if (ended)
        tdelete(ended, &allocations, compare);
    pthread_rwlock_unlock(&allocations_lock);
    free(ended);
}

/* True if a copy or a fill may touch these bytes, as far as the server knows better than the driver. */
int cuda_may_touch(CUdeviceptr pointer, size_t bytes) {
    CUdeviceptr offset = pointer - CUDA_PLACES;
    if (!bytes || pointer < CUDA_PLACES || pointer >= CUDA_PLACES_END || offset % CUDA_PLACE_BYTES >= CUDA_PLACED_BYTES)
        return 1;
    const struct allocation key = {pointer, 1};
    pthread_rwlock_rdlock(&allocations_lock);
    struct allocation *const *found = tfind(&key, &allocations, compare);
    int inside = found && bytes <= (*found)->bytes - (pointer - (*found)->base);
    pthread_rwlock_unlock(&allocations_lock);
    return inside;
}

/* The same of rows. */
int cuda_may_touch_rows(CUdeviceptr pointer, size_t pitch, size_t width, size_t element, size_t height) {
    if (!width || !height)
        return 1;
    unsigned __int128 bytes = (unsigned __int128)pitch * (height - 1) + (unsigned __int128)width * element;
    return bytes <= SIZE_MAX && cuda_may_touch(pointer, (size_t)bytes);
}

/* The same of one side of a box. */
int cuda_may_touch_box(CUdeviceptr pointer, size_t x, size_t y, size_t z, size_t pitch, size_t height,
                       const CUDA_MEMCPY3D *copy) {
    const size_t most = (size_t)1 << 40;
    if (!copy->WidthInBytes || !copy->Height || !copy->Depth)
        return 1;
    if (x > most || y > most || z > most || pitch > most || height > most || copy->WidthInBytes > most || copy->Height > most
        || copy->Depth > most)
        return 0;
    unsigned __int128 row = pitch ? pitch : x + copy->WidthInBytes, rows = height ? height : y + copy->Height;
    unsigned __int128 first = (z * rows + y) * row + x;
    unsigned __int128 end = ((z + copy->Depth - 1) * rows + y + copy->Height - 1) * row + x + copy->WidthInBytes;
    return end <= SIZE_MAX - pointer && cuda_may_touch(pointer + (CUdeviceptr)first, (size_t)(end - first));
}

int cuda_may_run(const CUstreamBatchMemOpParams *operations, unsigned int count) {
    for (unsigned int i = 0; operations && i < count; i++)
        switch (operations[i].operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            if (!cuda_may_touch(operations[i].waitValue.address, 4))
                return 0;
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            if (!cuda_may_touch(operations[i].waitValue.address, 8))
                return 0;
            break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER: break;
        default: return 0;
        }
    return operations || !count;
}
