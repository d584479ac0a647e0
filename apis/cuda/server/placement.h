/* Chunks of device memory and their parts (address_placement.c), for what places allocations in them. */
#ifndef AVIARY_CUDA_PLACEMENT_H
#define AVIARY_CUDA_PLACEMENT_H
#include "moving.h"
#include "pieces.h"
#include <stdint.h>

/* Freed: in the order of a stream that has perhaps not come to that point (pools.c). */
enum part_use { PART_FREE, PART_USED, PART_FREED };

/* A part of a chunk; all parts of a chunk are in a list in order of their addresses. */
struct part {
    CUdeviceptr base;
    size_t bytes;
    enum part_use use;
    /* Of a freed one: reached when the stream of that number is at that point. */
    CUevent reached;
    unsigned long long stream;
    struct part *next;
};

struct pool {
    /* The driver's; NULL: not asked for yet. One that has ended has none; its memory is there until it is freed. */
    CUmemoryPool handle;
    int device, has_ended;
    /* The guest's for a pool that the application made; 0: the device's own. */
    uint64_t number;
    /* Of chunks, and of allocations as the application asked for them. */
    size_t reserved, most_reserved, used, most_used;
    struct pool *next;
};

struct chunk {
    CUdeviceptr base;
    size_t bytes;
    int device;
    int shared;
    /* Whose allocations are in it; NULL: those of cuMemAlloc. */
    struct pool *pool;
    struct cuda_memory memory;
    struct part *parts;
    struct chunk *next;
};

/* Of parts of chunks that are shared. */
enum { CUDA_PLACE_ALIGNMENT = 512 };

static inline size_t cuda_round_up(size_t bytes, size_t to) {
    return bytes > SIZE_MAX - to ? SIZE_MAX / to * to : (bytes + to - 1) / to * to;
}

/* All that follows is called with the lock. */
void cuda_lock_places(void);
void cuda_unlock_places(void);
CUresult cuda_reserve_places(int device);
/* The unit of chunks of a device whose places are reserved. */
size_t cuda_place_granule(int device);
/* The link to the first chunk of a device, ascending by base. */
struct chunk **cuda_chunks(int device);
/* One of so many whole granules, which is one free part; NULL: there is none, for that reason. */
struct chunk *cuda_new_chunk(int device, size_t bytes, CUresult *status);
/* Takes a free chunk out; it is there as before if the driver does not take its memory back. */
CUresult cuda_end_chunk(struct chunk **link);
/* The first bytes of a part that is free, or that may be used again; 0: there is no memory to remember the rest. */
int cuda_use_part(struct part *part, size_t bytes);
/* Joins the free neighbours of parts that have just become free. */
void cuda_join_parts(struct chunk *chunk);
/* The used part that begins there, and the link to its chunk. */
struct part *cuda_find_part(CUdeviceptr pointer, struct chunk ***link);

static inline int cuda_chunk_is_free(const struct chunk *chunk) {
    return chunk->parts->use == PART_FREE && !chunk->parts->next;
}

/* chunk_memory.c: how memory of a device is asked for. Any of it may be asked for by another process later. */
CUmemAllocationProp cuda_memory_on(int device);
/* Maps all of a new chunk's memory at its address; on failure it is mapped nowhere. */
CUresult cuda_map_chunk(struct chunk *chunk);
/* The application has a context on the device: true if it had none. */
int cuda_begin_use(int device);
/* Makes memory of another device accessible to that one, as far as the driver can. */
void cuda_let_use(const struct chunk *chunk, int device);
/* Pieces that are there and that no other process has: at most `room` of them are written; how many there are. */
size_t cuda_list_pieces(const struct chunk *chunk, struct cuda_evictable *list, size_t room);
/* As `cuda_chunk_leaves` and `cuda_chunk_returns`. */
CUresult cuda_piece_leaves(struct chunk *chunk, size_t piece);
CUresult cuda_piece_returns(struct chunk *chunk, size_t piece);

/* known_pools.c, with the lock too, but for the two about captures and `cuda_any_pool`. */
struct pool *cuda_pools(void);
/* False: there is none. */
int cuda_any_pool(void);
/* The pool of the driver's pool; NULL: nothing was allocated from it. */
struct pool *cuda_find_pool(CUmemoryPool handle);
/* The same, made if there is none; NULL: there is no memory for it. */
struct pool *cuda_pool_of(CUmemoryPool handle, int device);
/* The driver's pool; NULL: it has ended. */
CUmemoryPool cuda_pool_handle(struct pool *pool);
/* The pool that has this number in a snapshot; NULL: there is no memory for it. */
struct pool *cuda_pool_of_number(uint64_t number, int device);
/* Bytes of a chunk that it has now, and of an allocation. */
void cuda_pool_has(struct pool *pool, size_t reserved, size_t used);
/* The allocation there is about to be forgotten. */
void cuda_pool_part_freed(struct pool *pool, CUdeviceptr pointer);
void cuda_note_captured_memory(void);

#endif
