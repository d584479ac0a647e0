/* Unified shared memory in the application's process.
 *
 * Where only CPUs compute in a context every allocation, of whatever kind, is zero-copy memory: libraries that compute on CPUs (oneMKL)
 * use a device's allocations in the application's process, as they can natively. Elsewhere, and without shared memory, an
 * allocation of a device is a number that the server checks, and there are no others. */
#include "guest.h"
#include "usm_ranges.h"
#include <stdlib.h>
#include <string.h>

int opencl_shares_memory(void) {
    static int known;
    int shares = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!shares) {
        void *probe = aviary_zerocopy_alloc_uninitialized(1);
        shares = probe ? 1 : 2;
        aviary_zerocopy_free(probe);
        /* Not remembered of a server that is gone: a child process may have another one. */
        if (aviary_connected())
            __atomic_store_n(&known, shares, __ATOMIC_RELAXED);
    }
    return shares == 1;
}

int opencl_usm_in_place(cl_context context) {
    return aviary_is_handle(context) && opencl_computes_in_host_memory(context) && opencl_shares_memory();
}

void opencl_fix_usm_capabilities(cl_device_id device, cl_device_info name, size_t size, void *value) {
    int is_placed = name == CL_DEVICE_HOST_MEM_CAPABILITIES_INTEL || name == CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL
                    || name == CL_DEVICE_CROSS_DEVICE_SHARED_MEM_CAPABILITIES_INTEL;
    if (!value || size < sizeof(cl_device_unified_shared_memory_capabilities_intel))
        return;
    /* The server does not have what `malloc` returns in the application. */
    if (name == CL_DEVICE_SHARED_SYSTEM_MEM_CAPABILITIES_INTEL || (is_placed && !(opencl_runs_on_host(device) && opencl_shares_memory())))
        *(cl_device_unified_shared_memory_capabilities_intel *)value = 0;
}

/* ---- Allocating ------------------------------------------------------------------------------ */

/* Adds a range to the list, in the place of what a connection left there that is gone (in a child process). */
static int add(struct usm_range range) {
    struct usm_range *old;
    usm_lock();
    while ((old = usm_overlapping(range.start, range.size)))
        usm_take(old);
    int added = usm_add(range);
    usm_unlock();
    return added;
}

static char *align(void *block, size_t alignment) {
    uintptr_t address = (uintptr_t)block;
    return (char *)((address + alignment - 1) & ~(uintptr_t)(alignment - 1));
}

/* Memory for an allocation that the server has not judged yet; NULL: the vendor's library has to say why not. */
void *opencl_usm_place(cl_context context, size_t size, cl_uint alignment) {
    if (size == 0 || size > OPENCL_LARGEST_PLACE || (alignment & (alignment - 1)) || !opencl_usm_in_place(context))
        return NULL;
    size_t step = alignment ? alignment : 1;
    void *block = aviary_zerocopy_alloc_uninitialized(size);
    if (block && align(block, step) != block) {
        aviary_zerocopy_free(block);
        block = aviary_zerocopy_alloc_uninitialized(size + step);
    }
    if (!block)
        return NULL;
    struct usm_range range = {.start = align(block, step), .size = size, .type = CL_MEM_TYPE_UNKNOWN_INTEL, .block = block};
    int added = add(range);
    if (!added)
        aviary_zerocopy_free(block);
    return added ? range.start : NULL;
}

static void forget(const void *start, cl_context context) {
    usm_lock();
    struct usm_range *range = usm_starting_at(start, context);
    void *block = range ? usm_take(range).block : NULL;
    usm_unlock();
    if (block)
        aviary_zerocopy_free(block);
}

/* The call is over: `made` is what the application gets. */
void opencl_usm_settle(cl_context context, cl_device_id device, int type, size_t size, const void *place, void *made) {
    if (place && made != place)
        forget(place, NULL);
    if (!made)
        return;
    struct usm_range range = {.start = made,
                              .size = size,
                              .type = (cl_unified_shared_memory_type_intel)type,
                              .context = context,
                              .device = device};
    usm_lock();
    struct usm_range *placed = place ? usm_starting_at(made, NULL) : NULL;
    if (placed) {
        range.block = placed->block;
        *placed = range;
    }
    usm_unlock();
    if (!place)
        add(range);
}

void opencl_usm_forget(cl_context context, const void *pointer) {
    forget(pointer, context);
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* True if these bytes are memory of a device that has no address here. */
int opencl_usm_is_number(const void *pointer) {
    usm_lock();
    const struct usm_range *range = usm_at(pointer, 0);
    int is_number = range && !range->block;
    usm_unlock();
    return is_number;
}

static cl_int answer(const void *from, size_t bytes, size_t room, void *value, size_t *size_ret) {
    if (value && room < bytes)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, bytes);
    if (size_ret)
        *size_ret = bytes;
    return CL_SUCCESS;
}

/* The list here has all that the application can ask for: of other memory the answer is that nothing is known. */
cl_int opencl_usm_info(cl_context context, const void *pointer, cl_mem_info_intel name, size_t size, void *value, size_t *size_ret) {
    struct usm_range found = {.type = CL_MEM_TYPE_UNKNOWN_INTEL};
    usm_lock();
    const struct usm_range *range = usm_at(pointer, 0);
    if (range && range->context == context)
        found = *range;
    usm_unlock();
    switch (name) {
    case CL_MEM_ALLOC_TYPE_INTEL:
        return answer(&found.type, sizeof found.type, size, value, size_ret);
    case CL_MEM_ALLOC_BASE_PTR_INTEL:
        return answer(&found.start, sizeof found.start, size, value, size_ret);
    case CL_MEM_ALLOC_SIZE_INTEL:
        return answer(&found.size, sizeof found.size, size, value, size_ret);
    case CL_MEM_ALLOC_DEVICE_INTEL:
        return answer(&found.device, sizeof found.device, size, value, size_ret);
    default:
        return CL_INVALID_VALUE;
    }
}

/* ---- Kernel arguments ------------------------------------------------------------------------- */

/* True if an argument that has been accepted gets another pointer into a live allocation of the kernel's context: it cannot fail. */
int opencl_usm_argument_repeats(cl_kernel kernel, cl_uint index, const void *pointer) {
    const struct opencl_object *object = object_of(kernel);
    if (!object || !pointer || index >= OPENCL_REMEMBERED || object->argument_shape[index] != SHAPE_USM)
        return 0;
    usm_lock();
    const struct usm_range *range = usm_at(pointer, 0);
    int is_live = range && range->context && range->context == object->context;
    usm_unlock();
    return is_live;
}

void opencl_usm_note_argument(cl_kernel kernel, cl_uint index, const void *pointer) {
    struct opencl_object *object = object_of(kernel);
    if (!object || opencl_usm_argument_repeats(kernel, index, pointer))
        return;
    object->launched_on = 0;
    if (index >= OPENCL_REMEMBERED)
        return;
    usm_lock();
    const struct usm_range *range = usm_at(pointer, 0);
    cl_context context = range ? range->context : NULL;
    usm_unlock();
    object->argument_shape[index] = context ? SHAPE_USM : NO_SHAPE;
    if (context)
        object->context = context;
}
