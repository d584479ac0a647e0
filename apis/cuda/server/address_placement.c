/* Device memory at addresses of our own choice: the same numbers mean nothing else in any application's process, and
 * an allocation can be put back at its address. Each device has a range of its own; the driver's virtual memory
 * functions put physical memory there, in chunks of whole granules. A large allocation is a chunk, small ones share
 * chunks. What a tenant is charged is chunks, so that no pattern of allocating holds more than it pays for. */
#include "placement.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_DEVICES = CUDA_MOST_PLACES, SMALL = 1 << 20 };
#define RANGE_BYTES ((size_t)CUDA_PLACE_BYTES)
/* The rest of a range is for what applications reserve themselves. */
#define PLACED_BYTES ((size_t)CUDA_PLACED_BYTES)

static struct {
    int reserved;
    CUdeviceptr base;
    size_t granule;
    /* Ascending by base. */
    struct chunk *chunks;
} places[MOST_DEVICES];
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

/* The placement that the gate asked about, for the call that follows on the same thread. */
static __thread struct {
    CUdeviceptr found;
    struct chunk *emptied;
    CUresult status;
} planned;

static int current_device(void) {
    CUdevice device = -1;
    return cuCtxGetDevice(&device) == CUDA_SUCCESS && device < MOST_DEVICES ? device : -1;
}

/* The driver's functions for virtual memory do not ask whether the current context has ended. */
static int any_reset;

void cuda_note_reset(void) {
    __atomic_store_n(&any_reset, 1, __ATOMIC_RELEASE);
}

static CUresult context_status(void) {
    size_t limit = 0;
    return __atomic_load_n(&any_reset, __ATOMIC_ACQUIRE) ? cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE) : CUDA_SUCCESS;
}

static CUresult reserve(int device) {
    if (places[device].reserved)
        return CUDA_SUCCESS;
    CUdeviceptr wanted = CUDA_PLACES + (CUdeviceptr)device * RANGE_BYTES, base = 0;
    CUmemAllocationProp property = cuda_memory_on(device);
    CUresult status = cuMemGetAllocationGranularity(&places[device].granule, &property, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (status == CUDA_SUCCESS)
        status = cuMemAddressReserve(&base, RANGE_BYTES, 0, wanted, 0);
    if (status != CUDA_SUCCESS)
        return status;
    if (base != wanted) {
        aviary_log("the driver places device memory at %#llx, not at %#llx: an application could have memory there",
                   (unsigned long long)base, (unsigned long long)wanted);
        cuMemAddressFree(base, RANGE_BYTES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    places[device].base = base;
    places[device].reserved = 1;
    return CUDA_SUCCESS;
}

void cuda_lock_places(void) {
    pthread_mutex_lock(&places_lock);
}

void cuda_unlock_places(void) {
    pthread_mutex_unlock(&places_lock);
}

CUresult cuda_reserve_places(int device) {
    return device < 0 || device >= MOST_DEVICES ? CUDA_ERROR_INVALID_VALUE : reserve(device);
}

size_t cuda_place_granule(int device) {
    return places[device].granule;
}

struct chunk **cuda_chunks(int device) {
    return &places[device].chunks;
}

/* ---- Chunks --------------------------------------------------------------------------------- */

/* Memory for a new chunk, at its address. `descriptor`: of its memory, which has been in another process and is taken, or -1. */
static CUresult get_memory(struct chunk *chunk, int descriptor) {
    CUmemAllocationProp property = cuda_memory_on(chunk->device);
    CUresult status = descriptor >= 0 ? cuda_import_memory(&chunk->memory, chunk->bytes, &descriptor, 1)
                                      : cuda_create_memory(&chunk->memory, &property, chunk->bytes);
    if (status != CUDA_SUCCESS)
        return status;
    status = cuda_map_chunk(chunk);
    if (status != CUDA_SUCCESS) {
        /* It remains the caller's. */
        if (descriptor >= 0)
            chunk->memory.pieces[0].descriptor = -1;
        cuda_release_memory(&chunk->memory);
    }
    return status;
}

/* A new chunk there, linked in; NULL: another one is, or the driver has no memory. `descriptor`: as of `get_memory`; the caller's if
 * there is no chunk. */
static struct chunk *chunk_at(int device, CUdeviceptr at, size_t bytes, int descriptor, CUresult *status) {
    struct chunk *chunk = calloc(1, sizeof *chunk);
    struct part *whole = calloc(1, sizeof *whole);
    struct chunk **link = &places[device].chunks;
    while (*link && (*link)->base + (*link)->bytes <= at)
        link = &(*link)->next;
    *status = CUDA_ERROR_OUT_OF_MEMORY;
    if (!chunk || !whole || (*link && (*link)->base - at < bytes))
        goto fail;
    *chunk = (struct chunk){.base = at, .bytes = bytes, .device = device, .parts = whole};
    *status = get_memory(chunk, descriptor);
    if (*status != CUDA_SUCCESS)
        goto fail;
    *whole = (struct part){.base = at, .bytes = bytes};
    chunk->next = *link;
    *link = chunk;
    return chunk;
fail:
    free(chunk);
    free(whole);
    return NULL;
}

/* In the first gap of that size. */
struct chunk *cuda_new_chunk(int device, size_t bytes, CUresult *status) {
    const struct chunk *next = places[device].chunks;
    CUdeviceptr at = places[device].base;
    for (; next && next->base - at < bytes; next = next->next)
        at = next->base + next->bytes;
    *status = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > PLACED_BYTES || at - places[device].base > PLACED_BYTES - bytes)
        return NULL;
    return chunk_at(device, at, bytes, -1, status);
}

/* Takes a free chunk out of the list, before its address is anybody else's, who maps other memory there. If that fails it stays, for
 * others. */
static CUresult take_out(struct chunk **link) {
    struct chunk *chunk = *link;
    CUresult status = cuMemUnmap(chunk->base, chunk->bytes);
    if (status == CUDA_SUCCESS)
        *link = chunk->next;
    return status;
}

/* Of a chunk that is mapped no longer. */
static CUresult end_chunk(struct chunk *chunk) {
    CUresult status = cuda_release_memory(&chunk->memory);
    for (struct part *part = chunk->parts; part;) {
        struct part *next = part->next;
        free(part);
        part = next;
    }
    free(chunk);
    return status;
}

CUresult cuda_end_chunk(struct chunk **link) {
    struct chunk *chunk = *link;
    CUresult status = take_out(link);
    return status == CUDA_SUCCESS ? end_chunk(chunk) : status;
}

/* ---- Parts ---------------------------------------------------------------------------------- */

int cuda_use_part(struct part *part, size_t bytes) {
    if (part->bytes > bytes) {
        struct part *rest = calloc(1, sizeof *rest);
        if (!rest)
            return 0;
        *rest = (struct part){.base = part->base + bytes, .bytes = part->bytes - bytes, .next = part->next};
        part->next = rest;
        part->bytes = bytes;
    }
    part->use = PART_USED;
    return 1;
}

static CUdeviceptr take(struct chunk *chunk, size_t bytes) {
    for (struct part *part = chunk->parts; part; part = part->next)
        if (part->use == PART_FREE && part->bytes >= bytes)
            return cuda_use_part(part, bytes) ? part->base : 0;
    return 0;
}

static CUdeviceptr take_small(int device, size_t bytes) {
    for (struct chunk *chunk = places[device].chunks; chunk; chunk = chunk->next) {
        CUdeviceptr found = chunk->shared && !chunk->pool ? take(chunk, bytes) : 0;
        if (found)
            return found;
    }
    return 0;
}

void cuda_join_parts(struct chunk *chunk) {
    for (struct part *part = chunk->parts; part && part->next;) {
        struct part *next = part->next;
        if (part->use != PART_FREE || next->use != PART_FREE) {
            part = next;
            continue;
        }
        part->bytes += next->bytes;
        part->next = next->next;
        free(next);
    }
}

struct part *cuda_find_part(CUdeviceptr pointer, struct chunk ***link) {
    CUdeviceptr offset = pointer - CUDA_PLACES;
    if (pointer < CUDA_PLACES || offset / RANGE_BYTES >= MOST_DEVICES)
        return NULL;
    for (*link = &places[offset / RANGE_BYTES].chunks; **link; *link = &(**link)->next)
        if (pointer >= (**link)->base && pointer - (**link)->base < (**link)->bytes)
            for (struct part *part = (**link)->parts; part; part = part->next)
                if (part->use == PART_USED && part->base == pointer)
                    return part;
    return NULL;
}

/* ---- What the gate and the handlers call ---------------------------------------------------- */

/* Bytes of device memory that an allocation adds. An allocation that fits into a chunk that is there gets its place
 * now, so that no other thread takes it. */
uint64_t cuda_place_bytes(size_t bytes) {
    int device = current_device();
    planned.found = 0;
    if (device < 0 || !bytes)
        return 0;
    planned.status = context_status();
    if (planned.status != CUDA_SUCCESS)
        return 0;
    pthread_mutex_lock(&places_lock);
    CUresult status = reserve(device);
    size_t granule = places[device].granule;
    if (status == CUDA_SUCCESS && bytes < SMALL)
        planned.found = take_small(device, cuda_round_up(bytes, CUDA_PLACE_ALIGNMENT));
    pthread_mutex_unlock(&places_lock);
    planned.status = status;
    return status != CUDA_SUCCESS || planned.found ? 0 : cuda_round_up(bytes, granule);
}

/* A place that nobody has learnt of. The chunk stays, for others. */
static void give_back(CUdeviceptr pointer) {
    struct chunk **link = NULL;
    pthread_mutex_lock(&places_lock);
    struct part *part = cuda_find_part(pointer, &link);
    if (part) {
        part->use = PART_FREE;
        cuda_join_parts(*link);
    }
    pthread_mutex_unlock(&places_lock);
}

/* 0: there is none, for the reason that `status` says. */
static CUdeviceptr place_in_new_chunk(int device, size_t bytes, CUresult *status) {
    CUdeviceptr found = 0;
    pthread_mutex_lock(&places_lock);
    struct chunk *chunk = cuda_new_chunk(device, cuda_round_up(bytes, places[device].granule), status);
    if (chunk) {
        chunk->shared = bytes < SMALL;
        found = take(chunk, chunk->shared ? cuda_round_up(bytes, CUDA_PLACE_ALIGNMENT) : chunk->bytes);
    }
    pthread_mutex_unlock(&places_lock);
    return found;
}

static CUresult place(CUdeviceptr *pointer, size_t bytes) {
    int device = current_device();
    CUdeviceptr found = planned.found;
    CUresult status = CUDA_SUCCESS;
    planned.found = 0;
    if (device < 0) {
        status = cuCtxGetDevice(&(CUdevice){0});
        return status == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : status;
    }
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (planned.status != CUDA_SUCCESS)
        return planned.status;
    if (!found)
        found = place_in_new_chunk(device, bytes, &status);
    if (!found && status == CUDA_ERROR_OUT_OF_MEMORY && cuda_make_room(device, cuda_round_up(bytes, places[device].granule)))
        found = place_in_new_chunk(device, bytes, &status);
    if (!found)
        return status;
    if (!cuda_keep_allocation(found, bytes)) {
        give_back(found);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = found;
    return CUDA_SUCCESS;
}

void *cuda_place_function(void) {
    return (void *)place;
}

/* Waits, as the driver does, until nothing uses the memory; then takes it out. The bytes of device memory that come
 * free with it: those of the chunk, if it was the last in there. */
uint64_t cuda_withdraw(CUdeviceptr pointer) {
    struct chunk **link = NULL;
    uint64_t bytes = 0;
    planned.emptied = NULL;
    planned.status = cuCtxSynchronize();
    pthread_mutex_lock(&places_lock);
    struct part *part = cuda_find_part(pointer, &link);
    if (!part)
        planned.status = CUDA_ERROR_INVALID_VALUE;
    else if (planned.status == CUDA_SUCCESS) {
        struct chunk *chunk = *link;
        part->use = PART_FREE;
        if (chunk->pool)
            cuda_pool_part_freed(chunk->pool, pointer);
        cuda_drop_allocation(pointer);
        cuda_join_parts(chunk);
        /* A pool's chunks are its own matter. */
        int empty = cuda_chunk_is_free(chunk) && !chunk->pool;
        planned.status = empty ? take_out(link) : CUDA_SUCCESS;
        if (empty && planned.status == CUDA_SUCCESS) {
            planned.emptied = chunk;
            bytes = chunk->bytes;
        }
    }
    pthread_mutex_unlock(&places_lock);
    return bytes;
}

static CUresult unplace(CUdeviceptr pointer) {
    struct chunk *emptied = planned.emptied;
    (void)pointer;
    planned.emptied = NULL;
    return emptied ? end_chunk(emptied) : planned.status;
}

void *cuda_unplace_function(void) {
    return (void *)unplace;
}

CUresult cuda_reserve_device(int device) {
    pthread_mutex_lock(&places_lock);
    CUresult status = cuda_reserve_places(device);
    pthread_mutex_unlock(&places_lock);
    return status;
}

/* Where applications reserve: beside the placements of the current device, or of the first. */
CUresult cuda_application_window(CUdeviceptr *base, size_t *bytes) {
    int device = current_device();
    device = device < 0 ? 0 : device;
    pthread_mutex_lock(&places_lock);
    CUresult status = reserve(device);
    *base = places[device].base + PLACED_BYTES;
    pthread_mutex_unlock(&places_lock);
    *bytes = RANGE_BYTES - PLACED_BYTES;
    return status;
}

/* ---- Other devices and other processes ------------------------------------------------------- */

/* The application has a context on that device. What is there already is made accessible as far as the driver can. */
void cuda_use_device(CUdevice device) {
    if (device < 0 || device >= MOST_DEVICES)
        return;
    pthread_mutex_lock(&places_lock);
    int is_new = cuda_begin_use(device);
    for (int owner = 0; owner < MOST_DEVICES && is_new; owner++)
        for (struct chunk *chunk = places[owner].chunks; chunk && owner != device; chunk = chunk->next)
            cuda_let_use(chunk, device);
    pthread_mutex_unlock(&places_lock);
}

/* The allocation that a pointer is in, as a part of what is offered: its chunk. */
static CUresult share(CUdeviceptr pointer, aviary_memory_part *told) {
    CUdeviceptr offset = pointer - CUDA_PLACES;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (pointer < CUDA_PLACES || offset / RANGE_BYTES >= MOST_DEVICES || !told)
        return status;
    pthread_mutex_lock(&places_lock);
    struct chunk *chunk = places[offset / RANGE_BYTES].chunks;
    while (chunk && (pointer < chunk->base || pointer - chunk->base >= chunk->bytes))
        chunk = chunk->next;
    struct part *part = chunk ? chunk->parts : NULL;
    while (part && (pointer < part->base || pointer - part->base >= part->bytes))
        part = part->next;
    if (part && part->use == PART_USED && !chunk->pool)
        status = cuda_offer_memory(&chunk->memory);
    if (status == CUDA_SUCCESS) {
        cuda_tell_offer_name(&chunk->memory.offer, &told->name);
        told->offset = part->base - chunk->base;
        told->bytes = part->bytes;
    }
    pthread_mutex_unlock(&places_lock);
    return status;
}

void *cuda_share_function(void) {
    return (void *)share;
}

uint64_t cuda_ordinal_of(CUdeviceptr pointer) {
    CUdeviceptr offset = pointer - CUDA_PLACES;
    return pointer >= CUDA_PLACES && offset / RANGE_BYTES < MOST_DEVICES ? offset / RANGE_BYTES + 1 : 0;
}

/* ---- Moving ---------------------------------------------------------------------------------- */

static size_t entries_of(const struct chunk *chunk) {
    size_t count = 1;
    for (const struct part *part = chunk->parts; part; part = part->next)
        count += part->use == PART_USED;
    return count;
}

int cuda_list_placed(struct cuda_placed **entries, size_t *count) {
    size_t room = 0, filled = 0;
    pthread_mutex_lock(&places_lock);
    for (int device = 0; device < MOST_DEVICES; device++)
        for (const struct chunk *chunk = places[device].chunks; chunk; chunk = chunk->next)
            room += entries_of(chunk);
    *entries = calloc(room ? room : 1, sizeof **entries);
    for (int device = 0; *entries && device < MOST_DEVICES; device++)
        for (const struct chunk *chunk = places[device].chunks; chunk; chunk = chunk->next) {
            (*entries)[filled++] = (struct cuda_placed){
                .base = chunk->base, .bytes = chunk->bytes, .device = device, .shared = (uint16_t)chunk->shared,
                .is_pools = chunk->pool != NULL, .pool = chunk->pool ? chunk->pool->number : 0};
            for (const struct part *part = chunk->parts; part; part = part->next)
                if (part->use == PART_USED)
                    (*entries)[filled++] = (struct cuda_placed){
                        .base = part->base, .bytes = part->bytes, .asked = cuda_allocated_bytes(part->base), .device = device};
        }
    pthread_mutex_unlock(&places_lock);
    *count = filled;
    return *entries != NULL;
}

int cuda_hand_over_placed(struct cuda_placed *entry) {
    int64_t number = -1;
    if (entry->device < 0 || entry->device >= MOST_DEVICES)
        return 0;
    pthread_mutex_lock(&places_lock);
    struct chunk *chunk = places[entry->device].chunks;
    while (chunk && chunk->base != entry->base)
        chunk = chunk->next;
    /* Sessions on devices whose memory has more than one piece do not move. */
    int descriptor = chunk && chunk->memory.count == 1 ? cuda_export_piece(&chunk->memory, 0) : -1;
    if (descriptor >= 0)
        number = aviary_hand_over(descriptor);
    pthread_mutex_unlock(&places_lock);
    entry->handed = number < 0 ? 0 : (uint64_t)number;
    return number >= 0;
}

/* Marks the part of the chunk at `entry`, behind all that are used. */
static CUresult use_again(struct chunk *chunk, const struct cuda_placed *entry) {
    struct part *last = chunk->parts;
    while (last->next)
        last = last->next;
    if (last->use != PART_FREE || !entry->asked || entry->asked > entry->bytes || entry->base < last->base
        || entry->base - last->base > last->bytes || entry->bytes > last->bytes - (entry->base - last->base))
        return CUDA_ERROR_INVALID_VALUE;
    if (entry->base > last->base) {
        struct part *gap = calloc(1, sizeof *gap);
        if (!gap)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *gap = (struct part){.base = entry->base, .bytes = last->bytes - (entry->base - last->base)};
        last->bytes = entry->base - last->base;
        last->next = gap;
        last = gap;
    }
    if (!cuda_use_part(last, entry->bytes) || !cuda_keep_allocation(entry->base, entry->asked))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (chunk->pool)
        cuda_pool_has(chunk->pool, 0, entry->asked);
    return CUDA_SUCCESS;
}

static CUresult chunk_again(struct cuda_placed *entry, struct chunk **made) {
    if (entry->device < 0 || entry->device >= MOST_DEVICES || entry->asked)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = reserve(entry->device);
    if (status != CUDA_SUCCESS)
        return status;
    const size_t granule = places[entry->device].granule;
    CUdeviceptr first = places[entry->device].base, offset = entry->base - first;
    if (entry->base < first || offset % granule || !entry->bytes || entry->bytes % granule || offset > PLACED_BYTES
        || entry->bytes > PLACED_BYTES - offset)
        return CUDA_ERROR_INVALID_VALUE;
    int is_handed = entry->content == CUDA_CONTENT_HANDED || entry->content == CUDA_CONTENT_BOTH;
    int descriptor = is_handed ? aviary_handed(entry->handed) : -1;
    if (entry->content == CUDA_CONTENT_BOTH)
        entry->content = descriptor < 0 ? CUDA_CONTENT_COPIED : CUDA_CONTENT_HANDED;
    if (entry->content == CUDA_CONTENT_HANDED && descriptor < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *made = chunk_at(entry->device, entry->base, entry->bytes, descriptor, &status);
    if (!*made) {
        if (descriptor >= 0)
            close(descriptor);
        return status;
    }
    (*made)->shared = entry->shared != 0;
    (*made)->pool = entry->is_pools ? cuda_pool_of_number(entry->pool, entry->device) : NULL;
    if (entry->is_pools && !(*made)->pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if ((*made)->pool)
        cuda_pool_has((*made)->pool, entry->bytes, 0);
    return CUDA_SUCCESS;
}

CUresult cuda_place_again(struct cuda_placed *entries, size_t count) {
    struct chunk *chunk = NULL;
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&places_lock);
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++)
        if (!entries[i].asked)
            status = chunk_again(&entries[i], &chunk);
        else
            status = chunk ? use_again(chunk, &entries[i]) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&places_lock);
    return status;
}

/* ---- Memory that leaves and returns ---------------------------------------------------------- */

/* With the lock; NULL: it is in none. */
static struct chunk *chunk_of(CUdeviceptr pointer) {
    CUdeviceptr offset = pointer - CUDA_PLACES;
    struct chunk *chunk =
        pointer >= CUDA_PLACES && offset / RANGE_BYTES < MOST_DEVICES ? places[offset / RANGE_BYTES].chunks : NULL;
    while (chunk && (pointer < chunk->base || pointer - chunk->base >= chunk->bytes))
        chunk = chunk->next;
    return chunk;
}

size_t cuda_list_chunks(CUdevice device, struct cuda_evictable *list, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&places_lock);
    for (const struct chunk *chunk = device >= 0 && device < MOST_DEVICES ? places[device].chunks : NULL; chunk; chunk = chunk->next)
        count += cuda_list_pieces(chunk, count < room ? list + count : NULL, count < room ? room - count : 0);
    pthread_mutex_unlock(&places_lock);
    return count;
}

CUresult cuda_chunk_leaves(CUdeviceptr base, size_t piece) {
    pthread_mutex_lock(&places_lock);
    struct chunk *chunk = chunk_of(base);
    CUresult status = chunk ? cuda_piece_leaves(chunk, piece) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&places_lock);
    return status;
}

CUresult cuda_chunk_returns(CUdeviceptr base, size_t piece) {
    pthread_mutex_lock(&places_lock);
    struct chunk *chunk = chunk_of(base);
    CUresult status = chunk ? cuda_piece_returns(chunk, piece) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&places_lock);
    return status;
}
