/* Device memory: what addresses mean. A device address is reserved and never readable by the host, as with a
 * real device; its bytes lie elsewhere (`backing`). Pinned host memory is its own backing. */
#ifndef REFDRIVER_MEMORY_H
#define REFDRIVER_MEMORY_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum block_kind {
    BLOCK_DEVICE,
    BLOCK_POOL,       /* allocated in a stream's order */
    BLOCK_MAPPED,     /* physical memory at a reserved address */
    BLOCK_HOST,       /* allocated pinned host memory */
    BLOCK_REGISTERED, /* the application's memory, pinned */
    BLOCK_MANAGED,    /* memory that the CPU uses, too; it stays where it is */
};

struct block {
    CUdeviceptr start;
    size_t size;
    char *backing;
    enum block_kind kind;
    CUcontext context; /* NULL for mapped memory */
    CUdevice device;
    unsigned flags; /* of the host allocation or registration */
    unsigned long long id;
    CUmemoryPool pool;
    struct physical *physical;
    bool accessible;
    /* Of mapped memory: bits of the devices whose kernels may use it. */
    unsigned devices;
};

CUresult memory_start(void);

/* Where the bytes of a range lie, or NULL unless all of it is accessible memory. May be called without the
 * driver's lock. */
void *memory_at(CUdeviceptr address, size_t size);
/* There is a block at this address, accessible or not. May be called without the driver's lock. */
bool memory_is_known(CUdeviceptr address);
/* The extent of the block at an address that kernels of a context can use: false where there is none. For caching; the same. */
bool memory_extent(CUdeviceptr address, CUcontext context, CUdeviceptr *start, size_t *size, char **backing);
/* The address is in a range that only devices have: not host memory, whether or not anything is there. */
bool memory_is_device_range(CUdeviceptr address);
/* The host may read this memory. */
bool memory_is_mapped(const void *address, size_t size);

/* The block that holds an address, or NULL. Valid until the next change of the table. */
struct block *memory_find(CUdeviceptr address);
/* Enters a block; false where memory is out. The block gets an id. */
bool memory_add(const struct block *block);
void memory_remove(CUdeviceptr start);

/* Allocates device memory at an address that is a multiple of `alignment`. */
CUresult memory_allocate(CUdeviceptr *address, size_t size, size_t alignment, CUcontext context, CUdevice device,
                         CUmemoryPool pool);
/* Where the bytes of an allocation lie in this process's file of device memory; false where there is none. */
bool memory_file(CUdeviceptr address, int *file, size_t *offset);
/* Frees and scrubs a device block. */
void memory_release(CUdeviceptr start);
/* Managed memory for a variable of a module. */
CUresult managed_allocate(CUdeviceptr *address, size_t size, CUcontext context);
/* Frees a block of managed memory when nothing uses it any more (host_memory.c). */
CUresult managed_free(CUdeviceptr start);
/* Frees what a context has. */
void memory_end(CUcontext context);

/* --- reservations of addresses (virtual_memory.c) --- */

struct reservation {
    CUdeviceptr start;
    size_t size;
    char *backing;
    struct reservation *next;
};
struct reservation *reservation_find(CUdeviceptr address);

/* --- pools (pool.c) --- */

struct CUmemPoolHandle_st;
CUmemoryPool pool_create(CUdevice device);
void pool_count(CUmemoryPool pool, long long change);

#endif
