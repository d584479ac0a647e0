/* The pools from which the application has allocated in the order of a stream, and how much each has. With the lock of the places, but
 * for what is said to need none. */
#include "placement.h"
#include <stdlib.h>

static struct pool *pools;
/* Before there is any, nothing is looked at. */
static int any_pool;

struct pool *cuda_pools(void) {
    return pools;
}

int cuda_any_pool(void) {
    return __atomic_load_n(&any_pool, __ATOMIC_ACQUIRE);
}

static CUmemoryPool own_pool(int device) {
    CUmemoryPool own = NULL;
    return cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS ? own : NULL;
}

CUmemoryPool cuda_pool_handle(struct pool *pool) {
    if (!pool->handle && !pool->has_ended)
        pool->handle = pool->number ? aviary_object(pool->number) : own_pool(pool->device);
    return pool->handle;
}

static struct pool *new_pool(CUmemoryPool handle, int device, uint64_t number) {
    struct pool *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    *made = (struct pool){.handle = handle, .device = device, .number = number, .next = pools};
    pools = made;
    __atomic_store_n(&any_pool, 1, __ATOMIC_RELEASE);
    return made;
}

struct pool *cuda_find_pool(CUmemoryPool handle) {
    struct pool *pool = pools;
    while (pool && cuda_pool_handle(pool) != handle)
        pool = pool->next;
    return pool;
}

struct pool *cuda_pool_of(CUmemoryPool handle, int device) {
    struct pool *pool = cuda_find_pool(handle);
    return pool ? pool : new_pool(handle, device, own_pool(device) == handle ? 0 : aviary_object_id(handle));
}

struct pool *cuda_pool_of_number(uint64_t number, int device) {
    struct pool *pool = pools;
    while (pool && (pool->number != number || pool->device != device))
        pool = pool->next;
    return pool ? pool : new_pool(NULL, device, number);
}

static void count_up(size_t *amount, size_t *most, size_t bytes) {
    *amount += bytes;
    *most = *amount > *most ? *amount : *most;
}

void cuda_pool_has(struct pool *pool, size_t reserved, size_t used) {
    count_up(&pool->reserved, &pool->most_reserved, reserved);
    count_up(&pool->used, &pool->most_used, used);
}

void cuda_pool_part_freed(struct pool *pool, CUdeviceptr pointer) {
    pool->used -= cuda_allocated_bytes(pointer);
}

/* ---- Memory of captured streams ------------------------------------------------------------------ */

/* It is there as long as the program likes, also when the graph has ended. */
static int any_captured;

void cuda_note_captured_memory(void) {
    __atomic_store_n(&any_captured, 1, __ATOMIC_RELEASE);
}

int cuda_has_captured_memory(void) {
    return __atomic_load_n(&any_captured, __ATOMIC_ACQUIRE);
}
