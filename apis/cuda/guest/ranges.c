/* The guest's knowledge of addresses: ranges of the device's, and of page-locked memory that both sides share.
 * Questions about pointers are answered from it, and a copy whose addresses are known to be good cannot fail. */
#include "guest/ranges.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum range_kind { RANGE_DEVICE, RANGE_HOST };

struct range {
    uintptr_t base;
    size_t bytes;
    enum range_kind kind;
    CUdevice device;
    CUcontext context;
    unsigned int flags;
    enum host_origin origin;
    /* Of another process's memory: how often it is open. */
    unsigned int opened;
    /* A graph's: its launches allocate it again and again. */
    int of_graph;
    /* Allocated in the order of a stream. */
    int of_pool;
    unsigned long long serial;
};

/* Ascending by base; never overlapping. */
static struct range *ranges;
static size_t range_count, range_room;
static unsigned long long range_serials;
static pthread_rwlock_t ranges_lock = PTHREAD_RWLOCK_INITIALIZER;

/* The first range that ends after `address`. */
static size_t position(uintptr_t address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].base + ranges[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct range range) {
    pthread_rwlock_wrlock(&ranges_lock);
    size_t at = position(range.base);
    /* An overlapping range is older knowledge of memory that was given back unseen. */
    size_t end = at;
    while (end < range_count && ranges[end].base < range.base + range.bytes)
        end++;
    if (range_count + 1 > range_room) {
        size_t room = range_room ? 2 * range_room : 256;
        struct range *larger = realloc(ranges, room * sizeof *larger);
        if (!larger) {
            pthread_rwlock_unlock(&ranges_lock);
            return;
        }
        ranges = larger;
        range_room = room;
    }
    memmove(ranges + at + 1, ranges + end, (range_count - end) * sizeof *ranges);
    range.serial = ++range_serials;
    ranges[at] = range;
    range_count = range_count - (end - at) + 1;
    pthread_rwlock_unlock(&ranges_lock);
}

/* Removes the range that begins at `base`; whether there was one, and which. */
static int take_range(uintptr_t base, enum range_kind kind, struct range *taken) {
    int found = 0;
    pthread_rwlock_wrlock(&ranges_lock);
    size_t at = position(base);
    if (at < range_count && ranges[at].base == base && ranges[at].kind == kind) {
        *taken = ranges[at];
        memmove(ranges + at, ranges + at + 1, (range_count - at - 1) * sizeof *ranges);
        range_count--;
        found = 1;
    }
    pthread_rwlock_unlock(&ranges_lock);
    return found;
}

static int find_range(uintptr_t address, struct range *found) {
    int known = 0;
    pthread_rwlock_rdlock(&ranges_lock);
    size_t at = position(address);
    if (at < range_count && ranges[at].base <= address) {
        *found = ranges[at];
        known = 1;
    }
    pthread_rwlock_unlock(&ranges_lock);
    return known;
}

/* ---- Device memory -------------------------------------------------------------------------- */

void cuda_note_memory(const CUdeviceptr *pointer, size_t bytes) {
    if (pointer && *pointer && bytes)
        insert((struct range){.base = *pointer, .bytes = bytes, .kind = RANGE_DEVICE, .device = cuda_current_ordinal(),
                              .context = cuda_current_context()});
}

static int any_of_graph;

void cuda_note_graph_memory(const CUdeviceptr *pointer, size_t bytes) {
    __atomic_store_n(&any_of_graph, 1, __ATOMIC_RELEASE);
    if (pointer && *pointer && bytes)
        insert((struct range){.base = *pointer, .bytes = bytes, .kind = RANGE_DEVICE, .device = cuda_current_ordinal(),
                              .context = cuda_current_context(), .of_graph = 1});
}

/* True if any graph of this process may allocate: its launch then can fail. */
int cuda_graphs_allocate(void) {
    return __atomic_load_n(&any_of_graph, __ATOMIC_ACQUIRE);
}

static int is_of_graph(CUdeviceptr pointer) {
    struct range range;
    return find_range(pointer, &range) && range.of_graph;
}

/* Of memory that a captured stream allocates. */
void cuda_note_async_memory(const CUdeviceptr *pointer, size_t bytes) {
    if (cuda_capturing())
        cuda_note_graph_memory(pointer, bytes);
    else if (pointer && *pointer && bytes)
        insert((struct range){.base = *pointer, .bytes = bytes, .kind = RANGE_DEVICE, .device = cuda_current_ordinal(),
                              .context = cuda_current_context(), .of_pool = 1});
}

void cuda_forget_memory(CUdeviceptr pointer) {
    struct range gone;
    if (is_of_graph(pointer))
        return;
    take_range(pointer, RANGE_DEVICE, &gone);
}

/* Which of all ranges that were ever known the one at `pointer` is; 0: none. */
cuuint64_t cuda_serial_of(CUdeviceptr pointer) {
    struct range range;
    return find_range(pointer, &range) && range.base == pointer ? range.serial : 0;
}

/* After a call that has freed it; another thread may have memory there by now. */
void cuda_forget_freed(CUdeviceptr pointer, cuuint64_t serial) {
    if (serial && cuda_serial_of(pointer) == serial)
        cuda_forget_memory(pointer);
}

/* One more or one less opens what begins at `base`; how many do now, 0 also where nothing is. */
static unsigned int count_opened(uintptr_t base, int change) {
    unsigned int opened = 0;
    pthread_rwlock_wrlock(&ranges_lock);
    size_t at = position(base);
    if (at < range_count && ranges[at].base == base && ranges[at].opened)
        opened = ranges[at].opened += (unsigned int)change;
    pthread_rwlock_unlock(&ranges_lock);
    return opened;
}

/* Of another process, and perhaps of another device than the current one. */
void cuda_note_opened(CUdeviceptr pointer, size_t bytes, CUdevice device) {
    if (pointer && bytes && !count_opened(pointer, 1))
        insert((struct range){.base = pointer, .bytes = bytes, .kind = RANGE_DEVICE, .device = device,
                              .context = cuda_current_context(), .opened = 1});
}

void cuda_forget_opened(CUdeviceptr pointer) {
    if (!count_opened(pointer, -1))
        cuda_forget_memory(pointer);
}

void cuda_note_global(const CUdeviceptr *pointer, const size_t *bytes) {
    struct range known;
    if (pointer && bytes && *pointer && !find_range(*pointer, &known))
        cuda_note_memory(pointer, *bytes);
}

void cuda_note_mapping(CUdeviceptr pointer, size_t bytes) {
    cuda_note_memory(&pointer, bytes);
}

void cuda_forget_mappings(CUdeviceptr pointer, size_t bytes) {
    struct range gone;
    CUdeviceptr end = pointer + bytes;
    while (pointer < end && find_range(pointer, &gone) && gone.kind == RANGE_DEVICE) {
        pointer = gone.base + gone.bytes;
        take_range(gone.base, RANGE_DEVICE, &gone);
    }
}

void cuda_forget_device_ranges(CUdevice device) {
    size_t kept = 0;
    pthread_rwlock_wrlock(&ranges_lock);
    for (size_t i = 0; i < range_count; i++)
        if (ranges[i].kind != RANGE_DEVICE || ranges[i].device != device)
            ranges[kept++] = ranges[i];
    range_count = kept;
    pthread_rwlock_unlock(&ranges_lock);
}

/* True if `bytes` from there lie in one piece of device memory. Asked before any copy or fill, so a managed variable that
 * is about to be used so gets what the application wrote into it. */
int cuda_on_device(CUdeviceptr pointer, size_t bytes) {
    struct range range;
    if (!find_range(pointer, &range))
        return 0;
    if (range.kind == RANGE_HOST && range.origin == HOST_VARIABLE)
        cuda_send_variables();
    /* Only while it is allocated; who waits for the answer is told. */
    return range.kind == RANGE_DEVICE && !range.of_graph && bytes <= range.base + range.bytes - pointer;
}

/* True if device memory that this process has allocated, not opened, begins at `pointer`. */
static int begins_own_memory(CUdeviceptr pointer, struct range *range) {
    return find_range(pointer, range) && range->kind == RANGE_DEVICE && range->base == pointer && !range->opened;
}

static int is_in_places(CUdeviceptr pointer) {
    return pointer >= CUDA_PLACES && pointer < CUDA_PLACES_END;
}

/* True for memory of a graph, which the driver placed. */
int cuda_is_pooled(CUdeviceptr pointer) {
    struct range range;
    return !is_in_places(pointer) && begins_own_memory(pointer, &range);
}

/* Memory that was allocated in the order of a stream, by its first address. */
int cuda_is_of_pool(CUdeviceptr pointer) {
    struct range range;
    return is_in_places(pointer) && begins_own_memory(pointer, &range) && range.of_pool;
}

/* Memory of cuMemAlloc, by its first address. */
int cuda_is_placed(CUdeviceptr pointer) {
    struct range range;
    return is_in_places(pointer) && begins_own_memory(pointer, &range) && !range.of_pool;
}

/* True if an address is the device's: only then is it none of this process. */
int cuda_is_device_address(CUdeviceptr pointer) {
    struct range range;
    if (find_range(pointer, &range))
        return range.kind == RANGE_DEVICE;
    return is_in_places(pointer);
}

/* ---- Page-locked memory --------------------------------------------------------------------- */

void cuda_note_host(void *memory, size_t bytes, unsigned int flags, enum host_origin origin) {
    insert((struct range){.base = (uintptr_t)memory, .bytes = bytes, .kind = RANGE_HOST, .device = cuda_current_ordinal(),
                          .context = cuda_current_context(), .flags = flags, .origin = origin});
}

/* Memory of the application's own: none of it may be known already. */
CUresult cuda_claim_host(void *memory, size_t bytes, unsigned int flags) {
    uintptr_t base = (uintptr_t)memory;
    pthread_rwlock_rdlock(&ranges_lock);
    size_t at = position(base);
    const struct range *there = at < range_count && ranges[at].base < base + bytes ? &ranges[at] : NULL;
    int is_registered = there && there->kind == RANGE_HOST && there->origin == HOST_REGISTERED;
    CUresult status = is_registered ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : there ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    pthread_rwlock_unlock(&ranges_lock);
    if (status == CUDA_SUCCESS)
        cuda_note_host(memory, bytes, flags, HOST_REGISTERED);
    return status;
}

/* The first of these bytes' registrations, if its context has ended; NULL: there is none. */
void *cuda_stale_registration(const void *memory, size_t bytes) {
    uintptr_t base = (uintptr_t)memory;
    pthread_rwlock_rdlock(&ranges_lock);
    size_t at = position(base);
    struct range *there = at < range_count && ranges[at].base < base + bytes ? &ranges[at] : NULL;
    void *stale = there && there->kind == RANGE_HOST && there->origin == HOST_REGISTERED && !aviary_is_handle(there->context)
                      ? (void *)there->base
                      : NULL;
    pthread_rwlock_unlock(&ranges_lock);
    return stale;
}

int cuda_take_host(void *memory, enum host_origin origin, size_t *bytes) {
    struct range range;
    if (!find_range((uintptr_t)memory, &range) || range.kind != RANGE_HOST || range.base != (uintptr_t)memory
        || range.origin != origin)
        return 0;
    *bytes = range.bytes;
    return take_range((uintptr_t)memory, RANGE_HOST, &range);
}

static int is_managed_origin(const struct range *range) {
    return range->kind == RANGE_HOST && (range->origin == HOST_MANAGED || range->origin == HOST_VARIABLE);
}

/* True if all of it lies in one piece of managed memory. */
int cuda_in_managed(CUdeviceptr pointer, size_t bytes) {
    struct range range;
    return find_range(pointer, &range) && is_managed_origin(&range) && bytes <= range.base + range.bytes - pointer;
}

/* ---- Questions about pointers --------------------------------------------------------------- */

CUresult cuda_address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    struct range range;
    if (!find_range(pointer, &range))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = range.base;
    if (bytes)
        *bytes = range.bytes;
    return CUDA_SUCCESS;
}

CUresult cuda_host_device_pointer(CUdeviceptr *pointer, const void *memory, unsigned int flags) {
    struct range range;
    if (!pointer || flags || !find_range((uintptr_t)memory, &range) || range.kind != RANGE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (range.origin == HOST_REGISTERED ? !cuda_is_in_place(memory, 1) : (!aviary_is_zerocopy(memory) && !cuda_is_mapped(memory)))
        return CUDA_ERROR_NOT_SUPPORTED;
    *pointer = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

CUresult cuda_host_flags(unsigned int *flags, const void *memory) {
    struct range range;
    if (!flags || !find_range((uintptr_t)memory, &range) || range.kind != RANGE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    /* Every such memory is mapped, and good in every context, where addresses are unified. */
    *flags = range.flags | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE;
    return CUDA_SUCCESS;
}

/* Memory of cuMemAlloc: the server can offer it to other processes. */
static int is_placed(CUdeviceptr pointer) {
    return cuda_is_device_address(pointer) && (pointer - CUDA_PLACES) % CUDA_PLACE_BYTES < CUDA_PLACE_BYTES / 2;
}

/* One answer; NOT_FOUND: this guest does not know the pointer. */
static CUresult answer(void *data, CUpointer_attribute attribute, uintptr_t pointer, const struct range *range) {
    int device = range->kind == RANGE_DEVICE, mapped = device || range->origin != HOST_REGISTERED || cuda_is_in_place((const void *)pointer, 1);
    int managed = is_managed_origin(range);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = range->context; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = device || managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!mapped)
            return CUDA_ERROR_NOT_SUPPORTED;
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = device ? NULL : (void *)pointer;
        return device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned int *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = range->serial; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned int *)data = (unsigned int)managed; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = range->device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned int *)data = device && is_placed(pointer);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = range->base; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = range->bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned int *)data = (unsigned int)mapped; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(unsigned int *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned int *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(void **)data = NULL; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuda_pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    struct range range;
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    return find_range(pointer, &range) ? answer(data, attribute, pointer, &range) : CUDA_ERROR_INVALID_VALUE;
}

/* Several at once: what does not apply is zero, and a pointer that nobody knows is no error. */
CUresult cuda_pointer_attributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer) {
    struct range range;
    int known = find_range(pointer, &range);
    if (!count || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++) {
        int wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT || attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER
                   || attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER || attributes[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID
                   || attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE
                   || attributes[i] == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
                   || attributes[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
        if (!known || answer(data[i], attributes[i], pointer, &range) != CUDA_SUCCESS)
            memset(data[i], 0, wide ? 8 : 4);
        if (!known && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = -2;
    }
    return CUDA_SUCCESS;
}

/* ---- The device's addresses in this process -------------------------------------------------- */

/* Nothing of this process may appear where device memory is. */
__attribute__((constructor)) static void reserve_places(void) {
    void *places = mmap((void *)CUDA_PLACES, CUDA_PLACES_END - CUDA_PLACES, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (places == (void *)CUDA_PLACES)
        madvise(places, CUDA_PLACES_END - CUDA_PLACES, MADV_DONTDUMP);
}
