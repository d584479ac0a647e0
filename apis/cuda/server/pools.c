/* Memory that is allocated in the order of a stream: parts of chunks (address_placement.c) of one pool each. So it has its address in
 * every process that the session moves to, leaves the device with the rest, and is charged by what is taken from the device. The
 * driver's own pools have only the settings. What a captured stream allocates is the driver's: it belongs to the graph. */
#include "capture_mode.h"
#include "placement.h"
#include <stdlib.h>

enum { MOST_LOOKS = 8 };
/* Of a chunk's charge, among the numbers of other charges of this process. */
#define CHARGE_NUMBER(base) ((uint64_t)1 << 61 | (base))

/* How many parts wait for their streams. */
static size_t freed_parts;
/* What the gate was told about the allocation that follows on the same thread. */
static __thread struct {
    struct pool *pool;
    CUdeviceptr found;
    /* A chunk that was made for it. */
    CUdeviceptr made;
    /* A captured one. */
    int is_drivers;
    CUresult status;
} planned;

/* How much the pool may keep that nobody uses. */
static cuuint64_t kept_bytes(struct pool *pool) {
    cuuint64_t bytes = 0;
    CUmemoryPool handle = cuda_pool_handle(pool);
    return handle && cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

/* ---- Memory that was freed in the order of a stream ------------------------------------------- */

static void settle(struct chunk *chunk, struct part *part) {
    cuEventDestroy_v2(part->reached);
    part->use = PART_FREE;
    freed_parts--;
    cuda_join_parts(chunk);
}

/* Frees parts whose streams have come so far, of all pools of the device or as many as are worth a look. */
static void settle_reached(int device, size_t most) {
    size_t looks = 0;
    for (struct chunk *chunk = *cuda_chunks(device); chunk && freed_parts && looks < most; chunk = chunk->next)
        for (struct part *part = chunk->pool ? chunk->parts : NULL; part && looks < most;) {
            /* An error stays with the context: nothing runs there any more. */
            if (part->use == PART_FREED && looks++ < most && cuEventQuery(part->reached) != CUDA_ERROR_NOT_READY) {
                settle(chunk, part);
                part = chunk->parts;
            } else {
                part = part->next;
            }
        }
}

/* Gives chunks that nothing is in back to the device until the pool has so many bytes. */
static void trim(struct pool *pool, cuuint64_t bytes) {
    for (struct chunk **link = cuda_chunks(pool->device); *link && pool->reserved > bytes;) {
        struct chunk *chunk = *link;
        CUdeviceptr base = chunk->base;
        size_t size = chunk->bytes;
        if (chunk->pool != pool || !cuda_chunk_is_free(chunk) || cuda_end_chunk(link) != CUDA_SUCCESS) {
            link = *link == chunk ? &chunk->next : link;
            continue;
        }
        pool->reserved -= size;
        aviary_charge_return(CHARGE_NUMBER(base));
    }
}

static void settle_all(void) {
    for (int device = 0; device < CUDA_MOST_PLACES; device++)
        settle_reached(device, SIZE_MAX);
    for (struct pool *pool = cuda_pools(); pool; pool = pool->next)
        if (pool->reserved > pool->used)
            trim(pool, kept_bytes(pool));
}

/* After a wait for the device: pools keep no more than they may. */
void cuda_settle_pools(void) {
    if (!cuda_any_pool())
        return;
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    cuda_lock_places();
    settle_all();
    cuda_unlock_places();
    cuda_end_relaxed(mode);
}

/* Waits for all streams in whose order something was freed, and gives back what nobody has. */
static void empty_pools(int device) {
    for (struct chunk *chunk = *cuda_chunks(device); chunk; chunk = chunk->next)
        for (struct part *part = chunk->pool ? chunk->parts : NULL; part; part = part->next)
            if (part->use == PART_FREED)
                cuEventSynchronize(part->reached);
    settle_reached(device, SIZE_MAX);
    for (struct pool *pool = cuda_pools(); pool; pool = pool->next)
        if (pool->device == device)
            trim(pool, 0);
}

static int has_too_little_left(uint64_t ordinal, size_t bytes) {
    uint64_t limit, left;
    const char *name = cuda_ordinal_name(ordinal, 0);
    return name && aviary_allowance("device_memory", name, &limit, &left) && left < bytes;
}

/* Bytes that are about to be charged on a device, for which pools give back what nobody has if too little is left. */
uint64_t cuda_room_for(uint64_t bytes, uint64_t ordinal) {
    if (!bytes || !ordinal || !cuda_any_pool() || !has_too_little_left(ordinal, bytes))
        return bytes;
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    cuda_lock_places();
    empty_pools((int)ordinal - 1);
    cuda_unlock_places();
    cuda_end_relaxed(mode);
    return bytes;
}

/* ---- Allocating -------------------------------------------------------------------------------- */

/* A number that no other stream of this process ever has; 0: unknown. */
static unsigned long long number_of(CUstream stream) {
    unsigned long long number = 0;
    return cuStreamGetId(stream, &number) == CUDA_SUCCESS ? number : 0;
}

static int may_use(const struct part *part, size_t bytes, unsigned long long stream) {
    return part->bytes >= bytes && (part->use == PART_FREE || (part->use == PART_FREED && stream && part->stream == stream));
}

/* Marks the point that the stream has come to; 0: the driver cannot. The stream's context is current. */
static int mark(struct part *part, CUstream stream) {
    if (cuEventCreate(&part->reached, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return 0;
    if (cuEventRecord(part->reached, stream) == CUDA_SUCCESS) {
        part->stream = number_of(stream);
        freed_parts++;
        return 1;
    }
    cuEventDestroy_v2(part->reached);
    return 0;
}

/* Uses the first bytes of a part. What remains of one that was freed is there for the same stream, and later for others. */
static CUdeviceptr use(struct part *part, size_t bytes, CUstream stream) {
    int was_freed = part->use == PART_FREED;
    CUevent reached = part->reached;
    CUdeviceptr base = part->base;
    if (!cuda_use_part(part, bytes))
        return 0;
    struct part *rest = part->next;
    if (!was_freed)
        return base;
    freed_parts--;
    if (rest && rest->base == base + bytes && rest->use == PART_FREE) {
        rest->use = mark(rest, stream) ? PART_FREED : PART_FREE;
        /* Nothing says when the stream is there: now it is. */
        if (rest->use == PART_FREE)
            cuEventSynchronize(reached);
    }
    cuEventDestroy_v2(reached);
    return base;
}

/* The smallest part that is large enough. */
static CUdeviceptr find(struct pool *pool, size_t bytes, CUstream stream) {
    unsigned long long number = number_of(stream);
    struct part *best = NULL;
    if (pool->reserved - pool->used < bytes)
        return 0;
    for (struct chunk *chunk = *cuda_chunks(pool->device); chunk; chunk = chunk->next)
        for (struct part *part = chunk->pool == pool ? chunk->parts : NULL; part; part = part->next)
            if (may_use(part, bytes, number) && (!best || part->bytes < best->bytes))
                best = part;
    return best ? use(best, bytes, stream) : 0;
}

/* With the lock: a place that is there, or how much the pool has to take from the device. */
static uint64_t plan(CUmemoryPool handle, int device, size_t bytes, CUstream stream) {
    size_t rounded = cuda_round_up(bytes, CUDA_PLACE_ALIGNMENT);
    planned.status = cuda_reserve_places(device);
    planned.pool = planned.status == CUDA_SUCCESS ? cuda_pool_of(handle, device) : NULL;
    if (!planned.pool)
        return 0;
    settle_reached(device, MOST_LOOKS);
    planned.found = find(planned.pool, rounded, stream);
    size_t more = cuda_round_up(bytes, cuda_place_granule(device));
    if (!planned.found && has_too_little_left(cuda_ordinal_of_device(device), more)) {
        /* One that is large enough may be there now; else there is more left. */
        settle_reached(device, SIZE_MAX);
        planned.found = find(planned.pool, rounded, stream);
        if (!planned.found)
            empty_pools(device);
    }
    return planned.found ? 0 : more;
}

/* Enters the context of a stream; 0: it is current, or there is none. */
static int enter(CUstream stream) {
    CUcontext context = NULL;
    return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD && cuStreamGetCtx(stream, &context) == CUDA_SUCCESS
           && cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

static void leave(int entered) {
    CUcontext context = NULL;
    if (entered)
        cuCtxPopCurrent_v2(&context);
}

/* Charge of an allocation in a stream's order from the pool (NULL: the device's present one). A captured one adds nothing: the executable
 * graph does. */
uint64_t cuda_pool_bytes(CUmemoryPool pool, size_t bytes, CUstream stream, uint64_t ordinal) {
    planned = (__typeof__(planned)){.status = CUDA_ERROR_OUT_OF_MEMORY};
    CUdevice device = -1;
    int is_captured = !cuda_may_pass(stream);
    planned.is_drivers = is_captured || !bytes || !ordinal;
    if (is_captured) {
        cuda_note_graph_allocation();
        cuda_note_captured_memory();
    }
    if (planned.is_drivers)
        return 0;
    int entered = enter(stream);
    uint64_t more = 0;
    device = (CUdevice)(ordinal - 1);
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    if (pool || (planned.status = cuDeviceGetMemPool(&pool, device)) == CUDA_SUCCESS) {
        cuda_lock_places();
        more = plan(pool, device, bytes, stream);
        cuda_unlock_places();
    }
    cuda_end_relaxed(mode);
    leave(entered);
    return more;
}

static CUdeviceptr take_from_device(struct pool *pool, size_t bytes, CUresult *status) {
    CUdeviceptr found = 0;
    cuda_lock_places();
    struct chunk *chunk = cuda_new_chunk(pool->device, cuda_round_up(bytes, cuda_place_granule(pool->device)), status);
    if (chunk) {
        chunk->shared = 1;
        chunk->pool = pool;
        cuda_pool_has(pool, chunk->bytes, 0);
        planned.made = chunk->base;
        found = chunk->base;
        /* Without memory to remember the rest of it, all of it. */
        if (!cuda_use_part(chunk->parts, bytes))
            cuda_use_part(chunk->parts, chunk->bytes);
    }
    cuda_unlock_places();
    return found;
}

/* A place that nobody has learnt of, with the chunk if that was made for it: the call fails, and charges nothing. */
static void give_back(struct pool *pool, CUdeviceptr pointer) {
    struct chunk **link = NULL;
    cuda_lock_places();
    struct part *part = cuda_find_part(pointer, &link);
    if (part) {
        part->use = PART_FREE;
        cuda_join_parts(*link);
        size_t bytes = (*link)->bytes;
        if (planned.made && cuda_end_chunk(link) == CUDA_SUCCESS)
            pool->reserved -= bytes;
    }
    planned.made = 0;
    cuda_unlock_places();
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes) {
    struct pool *pool = planned.pool;
    CUdeviceptr found = planned.found;
    CUresult status = planned.status;
    if (!pointer || !pool)
        return pointer ? status : CUDA_ERROR_INVALID_VALUE;
    size_t rounded = cuda_round_up(bytes, CUDA_PLACE_ALIGNMENT);
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    if (!found)
        found = take_from_device(pool, rounded, &status);
    if (!found && status == CUDA_ERROR_OUT_OF_MEMORY) {
        cuda_lock_places();
        empty_pools(pool->device);
        cuda_unlock_places();
        found = take_from_device(pool, rounded, &status);
    }
    if (!found && status == CUDA_ERROR_OUT_OF_MEMORY && cuda_make_room(pool->device, cuda_round_up(bytes, cuda_place_granule(pool->device))))
        found = take_from_device(pool, rounded, &status);
    cuda_end_relaxed(mode);
    if (!found)
        return status;
    if (!cuda_keep_allocation(found, bytes)) {
        give_back(pool, found);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    cuda_lock_places();
    cuda_pool_has(pool, 0, bytes);
    cuda_unlock_places();
    *pointer = found;
    return CUDA_SUCCESS;
}

static CUresult allocate_async(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return planned.is_drivers ? cuMemAllocAsync(pointer, bytes, stream) : allocate(pointer, bytes);
}

static CUresult allocate_from_pool(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return planned.is_drivers ? cuMemAllocFromPoolAsync(pointer, bytes, pool, stream) : allocate(pointer, bytes);
}

void *cuda_allocate_async_function(void) {
    return (void *)allocate_async;
}

void *cuda_allocate_from_pool_function(void) {
    return (void *)allocate_from_pool;
}

/* After the call: what it has charged is the chunk's. */
void cuda_keep_chunk(void) {
    if (planned.made)
        aviary_charge_keep(CHARGE_NUMBER(planned.made));
    planned.made = 0;
}

/* ---- Freeing ------------------------------------------------------------------------------------ */

/* With the lock. */
static CUresult free_part(CUdeviceptr pointer, CUstream stream) {
    struct chunk **link = NULL;
    struct part *part = cuda_find_part(pointer, &link);
    if (!part || !(*link)->pool)
        return CUDA_ERROR_INVALID_VALUE;
    part->use = mark(part, stream) ? PART_FREED : PART_USED;
    if (part->use == PART_USED) {
        CUresult status = cuStreamSynchronize(stream);
        if (status != CUDA_SUCCESS)
            return status;
        part->use = PART_FREE;
    }
    cuda_pool_part_freed((*link)->pool, pointer);
    cuda_drop_allocation(pointer);
    if (part->use == PART_FREE)
        cuda_join_parts(*link);
    return CUDA_SUCCESS;
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream) {
    /* A graph's memory, or a captured call, which the driver takes for nothing else. */
    if (pointer < CUDA_PLACES || pointer >= CUDA_PLACES_END || !cuda_may_pass(stream))
        return cuMemFreeAsync(pointer, stream);
    int entered = enter(stream);
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    cuda_lock_places();
    CUresult status = free_part(pointer, stream);
    cuda_unlock_places();
    cuda_end_relaxed(mode);
    leave(entered);
    return status;
}

void *cuda_free_async_function(void) {
    return (void *)free_async;
}

/* ---- Questions and settings ---------------------------------------------------------------------- */

/* Where the pool's own figure of an attribute is; NULL: the driver has it. */
static size_t *figure(struct pool *pool, CUmemPool_attribute attribute) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->most_reserved;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->most_used;
    default: return NULL;
    }
}

static CUresult get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    CUresult status = cuMemPoolGetAttribute(handle, attribute, value);
    if (status != CUDA_SUCCESS)
        return status;
    cuda_lock_places();
    struct pool *pool = cuda_find_pool(handle);
    const size_t *own = pool ? figure(pool, attribute) : NULL;
    if (own)
        *(cuuint64_t *)value = *own;
    cuda_unlock_places();
    return status;
}

void *cuda_get_pool_attribute_function(void) {
    return (void *)get_attribute;
}

static CUresult set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    CUresult status = cuMemPoolSetAttribute(handle, attribute, value);
    if (status != CUDA_SUCCESS)
        return status;
    cuda_lock_places();
    struct pool *pool = cuda_find_pool(handle);
    if (pool && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->most_reserved = pool->reserved;
    if (pool && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        pool->most_used = pool->used;
    cuda_unlock_places();
    return status;
}

void *cuda_set_pool_attribute_function(void) {
    return (void *)set_attribute;
}

static CUresult trim_pool(CUmemoryPool handle, size_t bytes) {
    CUresult status = cuMemPoolTrimTo(handle, bytes);
    CUstreamCaptureMode mode = cuda_begin_relaxed();
    cuda_lock_places();
    struct pool *pool = status == CUDA_SUCCESS ? cuda_find_pool(handle) : NULL;
    if (pool) {
        settle_reached(pool->device, SIZE_MAX);
        trim(pool, bytes);
    }
    cuda_unlock_places();
    cuda_end_relaxed(mode);
    return status;
}

void *cuda_trim_pool_function(void) {
    return (void *)trim_pool;
}

/* Its memory is there until it is freed, and then nobody keeps it. */
static CUresult destroy_pool(CUmemoryPool handle) {
    CUresult status = cuda_destroy_known_pool(handle);
    if (status != CUDA_SUCCESS)
        return status;
    cuda_lock_places();
    struct pool *pool = cuda_find_pool(handle);
    if (pool) {
        pool->handle = NULL;
        pool->has_ended = 1;
    }
    settle_all();
    cuda_unlock_places();
    return status;
}

void *cuda_destroy_pool_function(void) {
    return (void *)destroy_pool;
}

/* What is free, once pools have given back what they may not keep. */
static CUresult memory_info(size_t *available, size_t *total) {
    cuda_settle_pools();
    CUresult status = cuMemGetInfo_v2(available, total);
    if (status == CUDA_SUCCESS)
        cuda_show_allowance(cuda_ordinal_here(), available, total);
    return status;
}

void *cuda_memory_info_function(void) {
    return (void *)memory_info;
}
