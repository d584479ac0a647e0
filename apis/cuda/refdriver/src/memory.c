#include "memory.h"
#include "operation.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

/* Below what Aviary places device memory and shared memory at, as a driver under it has to live with both.
 * Every device has a window of addresses; each allocation lies in the window of its device. */
static const CUdeviceptr first_address = 0x080000000000;
enum { WINDOW_SHIFT = 37, GRANULARITY = 512 };
#define WINDOW ((size_t)1 << WINDOW_SHIFT)
#define ADDRESSES (WINDOW * DEVICE_MAXIMUM)

/* In a file, so that other processes can map it, too (ipc.c). */
static char *backing;
static int backing_file;

/* Sorted by address, free of overlaps. Changed with the driver's lock and this one held; running kernels and
 * copies read it with this one. */
static struct block *blocks;
#define BACKING_HINT 0x500000000000ull
static size_t count, room;
static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
static unsigned long long last_id;

CUresult memory_start(void)
{
    void *addresses = mmap((void *)first_address, ADDRESSES, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

    if (addresses == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    backing_file = memfd_create("refdriver", MFD_CLOEXEC);
    /* Not where programs have their memory: a tebibyte there would take all the addresses at which they are given any. */
    backing = backing_file >= 0 && ftruncate(backing_file, (off_t)ADDRESSES) == 0
                  ? mmap((void *)BACKING_HINT, ADDRESSES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, backing_file, 0) : MAP_FAILED;
    if (backing == MAP_FAILED) {
        munmap(addresses, ADDRESSES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* The first block that ends after the address. */
static size_t lower_bound(CUdeviceptr address)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].start + blocks[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct block *memory_find(CUdeviceptr address)
{
    size_t i = lower_bound(address);

    return i < count && blocks[i].start <= address ? &blocks[i] : NULL;
}

static void *at(CUdeviceptr address, size_t size)
{
    struct block *block = memory_find(address), *end = blocks + count;
    CUdeviceptr reached;
    char *result;

    if (!block || !block->accessible || size > (CUdeviceptr)-1 - address)
        return NULL;
    result = block->backing + (address - block->start);
    reached = block->start + block->size;
    /* Neighbours count as one only where an application put them side by side itself. */
    while (reached < address + size) {
        struct block *next = block + 1;
        if (block->kind != BLOCK_MAPPED || next == end || next->kind != BLOCK_MAPPED || !next->accessible ||
            next->start != reached || next->backing != block->backing + block->size)
            return NULL;
        block = next;
        reached += block->size;
    }
    return result;
}

void *memory_at(CUdeviceptr address, size_t size)
{
    void *result;

    pthread_rwlock_rdlock(&table);
    result = at(address, size);
    pthread_rwlock_unlock(&table);
    return result;
}

bool memory_is_known(CUdeviceptr address)
{
    bool known;

    pthread_rwlock_rdlock(&table);
    known = memory_find(address) != NULL;
    pthread_rwlock_unlock(&table);
    return known;
}

static bool reachable(const struct block *block, CUcontext context)
{
    switch (block->kind) {
    case BLOCK_DEVICE:
    case BLOCK_POOL:
        return block->device == context->device || context->peers[block->device];
    case BLOCK_MAPPED:
        return block->devices >> context->device & 1;
    default:
        return true;
    }
}

bool memory_extent(CUdeviceptr address, CUcontext context, CUdeviceptr *start, size_t *size, char **bytes)
{
    struct block *block;
    bool found;

    pthread_rwlock_rdlock(&table);
    block = memory_find(address);
    found = block && block->accessible && reachable(block, context);
    if (found) {
        *start = block->start;
        *size = block->size;
        *bytes = block->backing;
    }
    pthread_rwlock_unlock(&table);
    return found;
}

bool memory_is_device_range(CUdeviceptr address)
{
    return (address >= first_address && address - first_address < ADDRESSES) || reservation_find(address);
}

bool memory_is_mapped(const void *address, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)address & -page;

    if (!address || (uintptr_t)address + size < (uintptr_t)address)
        return false;
    /* msync does nothing here but to look at the range. */
    return msync((void *)start, (uintptr_t)address + size - start, MS_ASYNC) == 0;
}

bool memory_add(const struct block *block)
{
    size_t i = lower_bound(block->start);

    pthread_rwlock_wrlock(&table);
    if (count == room) {
        size_t more = room ? 2 * room : 64;
        struct block *grown = realloc(blocks, more * sizeof(*blocks));
        if (!grown) {
            pthread_rwlock_unlock(&table);
            return false;
        }
        blocks = grown;
        room = more;
    }
    memmove(blocks + i + 1, blocks + i, (count - i) * sizeof(*blocks));
    blocks[i] = *block;
    blocks[i].id = ++last_id;
    count++;
    pthread_rwlock_unlock(&table);
    return true;
}

void memory_remove(CUdeviceptr start)
{
    struct block *block = memory_find(start);
    size_t i = (size_t)(block - blocks);

    if (!block)
        return;
    pthread_rwlock_wrlock(&table);
    memmove(blocks + i, blocks + i + 1, (count - i - 1) * sizeof(*blocks));
    count--;
    pthread_rwlock_unlock(&table);
}

/* The lowest address of a device's window with that much room; 0 where there is none. */
static CUdeviceptr find_room(CUdevice device, size_t size, size_t alignment)
{
    CUdeviceptr start = first_address + (CUdeviceptr)device * WINDOW, end = start + WINDOW;

    for (size_t i = lower_bound(start);; i++) {
        start = (start + alignment - 1) / alignment * alignment;
        if (size > WINDOW || start + size > end)
            return 0;
        if (i == count || blocks[i].start >= start + size)
            return start;
        start = blocks[i].start + blocks[i].size;
    }
}

static size_t rounded(size_t size) { return (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY; }

CUresult memory_allocate(CUdeviceptr *address, size_t size, size_t alignment, CUcontext context, CUdevice device,
                         CUmemoryPool pool)
{
    struct device *place = &devices[device];
    struct block block = {
        .size = size,
        .kind = pool ? BLOCK_POOL : BLOCK_DEVICE,
        .context = context,
        .device = device,
        .pool = pool,
        .accessible = true,
    };

    if (size > place->memory || !device_take(place, rounded(size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* A fragment at the end of an allocation belongs to nobody. */
    block.start = find_room(device, rounded(size), alignment);
    block.backing = backing + (block.start - first_address);
    if (!block.start || !memory_add(&block)) {
        device_give(place, rounded(size));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = block.start;
    return CUDA_SUCCESS;
}

/* No allocation may read the contents of an earlier one. Whole pages go back to the system, which zeroes them. */
static void scrub(char *bytes, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)bytes, end = start + size;
    uintptr_t whole_start = (start + page - 1) & -page, whole_end = end & -page;

    if (whole_start >= whole_end || madvise((void *)whole_start, whole_end - whole_start, MADV_REMOVE) != 0) {
        memset(bytes, 0, size);
        return;
    }
    memset(bytes, 0, whole_start - start);
    memset((void *)whole_end, 0, end - whole_end);
}

bool memory_file(CUdeviceptr address, int *file, size_t *offset)
{
    struct block *block = memory_find(address);

    if (!block || block->kind != BLOCK_DEVICE || !block->size)
        return false;
    *file = backing_file;
    *offset = (size_t)(block->backing - backing);
    return true;
}

void memory_release(CUdeviceptr start)
{
    struct block *block = memory_find(start);

    if (!block)
        return;
    scrub(block->backing, block->size);
    device_give(&devices[block->device], rounded(block->size));
    if (block->pool)
        pool_count(block->pool, -(long long)block->size);
    memory_remove(start);
}

void memory_end(CUcontext context)
{
    size_t i = 0;

    while (i < count) {
        struct block *block = &blocks[i];
        if (block->context != context) {
            i++;
        } else if (block->kind == BLOCK_HOST || block->kind == BLOCK_MANAGED) {
            munmap(block->backing, block->size);
            memory_remove(block->start);
        } else if (block->kind == BLOCK_REGISTERED) {
            memory_remove(block->start);
        } else {
            memory_release(block->start);
        }
    }
}

/* --- the driver's functions --- */

static CUresult allocate(CUdeviceptr *address, size_t size)
{
    CUcontext context;
    CUresult result = address && size ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;
    size_t large = (size_t)2 << 20;

    if (result != CUDA_SUCCESS)
        return result;
    return memory_allocate(address, size, size >= large ? large : GRANULARITY, context, context->device, NULL);
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t size) { return allocate(address, size); }

CUresult cuMemAllocPitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    CUresult result;

    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16) || width > (size_t)1 << 40)
        return CUDA_ERROR_INVALID_VALUE;
    if (height > ((size_t)1 << 60) / rounded(width))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = allocate(address, rounded(width) * height);
    if (result == CUDA_SUCCESS)
        *pitch = rounded(width);
    return result;
}

CUresult cuMemFree(CUdeviceptr address)
{
    CUcontext context;
    CUresult result = context_need(&context);
    struct block *block;

    /* Freeing needs no context; an error that stays is told all the same. */
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_CONTEXT)
        return result;
    if (!address)
        return CUDA_SUCCESS;
    block = memory_find(address);
    if (!block || block->start != address || (block->kind != BLOCK_DEVICE && block->kind != BLOCK_POOL && block->kind != BLOCK_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    if (block->kind == BLOCK_MANAGED)
        return managed_free(address);
    /* Work that is under way may still use it. Meanwhile another thread may have freed it. */
    result = context_drain(block->context);
    block = memory_find(address);
    if (block && block->start == address && !graph_memory_free(address))
        memory_release(address);
    return result;
}

CUresult cuMemGetInfo(size_t *available, size_t *total)
{
    CUcontext context;
    CUresult result = available && total ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    *total = devices[context->device].memory;
    *available = device_available(&devices[context->device]);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *size, CUdeviceptr address)
{
    CUcontext context;
    CUresult result = context_need(&context);
    struct block *block;

    if (result != CUDA_SUCCESS)
        return result;
    block = memory_find(address);
    if (!block)
        return CUDA_ERROR_NOT_FOUND;
    if (start)
        *start = block->start;
    if (size)
        *size = block->size;
    return CUDA_SUCCESS;
}
