/* Unified shared memory on the server: allocations, and checks of every pointer into them.
 *
 * The memory of most allocations is the guest's zero-copy memory (guest/usm.c). The vendor's library then judges a call by an
 * allocation of one byte, and has the memory afterwards as it has the host's own. The others it allocates itself. */
#include "server.h"
#include "sizes.h"
#include "usm_ranges.h"
#include "usm_uses.h"
#include <stdlib.h>

/* ---- Allocating ------------------------------------------------------------------------------ */

static void *vendors_alloc(cl_unified_shared_memory_type_intel type, cl_context context, cl_device_id device,
                           const cl_mem_properties_intel *properties, size_t size, cl_uint alignment, cl_int *status) {
    if (type == CL_MEM_TYPE_HOST_INTEL) {
        clHostMemAllocINTEL_fn host = (clHostMemAllocINTEL_fn)opencl_context_function(context, "clHostMemAllocINTEL");
        return host ? host(context, properties, size, alignment, status) : NULL;
    }
    clDeviceMemAllocINTEL_fn on_device = (clDeviceMemAllocINTEL_fn)opencl_context_function(
        context, type == CL_MEM_TYPE_DEVICE_INTEL ? "clDeviceMemAllocINTEL" : "clSharedMemAllocINTEL");
    return on_device ? on_device(context, device, properties, size, alignment, status) : NULL;
}

static void vendors_free(cl_context context, void *pointer) {
    clMemFreeINTEL_fn function = (clMemFreeINTEL_fn)opencl_context_function(context, "clMemFreeINTEL");
    if (function)
        function(context, pointer);
}

/* `place`: where it has to lie; NULL: where the vendor likes. `in_place`: the guest would take an address of the vendor's for one of
 * its own. */
static void *allocate(cl_unified_shared_memory_type_intel type, cl_context context, cl_device_id device,
                      const cl_mem_properties_intel *properties, size_t size, cl_uint alignment, cl_int *status, void *place,
                      int in_place) {
    cl_int judged = CL_OUT_OF_RESOURCES;
    /* Without the application's memory there are only allocations of a device, and those only for a guest that takes them for numbers.
     * A wrong size or alignment is the vendor's to refuse. */
    int is_wrong = size == 0 || (alignment & (alignment - 1)) || size > opencl_largest_allocation(context);
    void *own = NULL;
    if (place || is_wrong || (type == CL_MEM_TYPE_DEVICE_INTEL && !in_place))
        own = vendors_alloc(type, context, device, properties, place && !is_wrong ? 1 : size, alignment, &judged);
    if (own && place) {
        vendors_free(context, own);
        own = place;
    }
    if (status)
        *status = own ? CL_SUCCESS : judged == CL_SUCCESS ? CL_OUT_OF_RESOURCES : judged;
    return own;
}

static void *allocate_host(cl_context context, const cl_mem_properties_intel *properties, size_t size, cl_uint alignment,
                           cl_int *status, void *place, int in_place) {
    return allocate(CL_MEM_TYPE_HOST_INTEL, context, NULL, properties, size, alignment, status, place, in_place);
}

static void *allocate_on_device(cl_context context, cl_device_id device, const cl_mem_properties_intel *properties, size_t size,
                                cl_uint alignment, cl_int *status, void *place, int in_place) {
    return allocate(CL_MEM_TYPE_DEVICE_INTEL, context, device, properties, size, alignment, status, place, in_place);
}

static void *allocate_shared(cl_context context, cl_device_id device, const cl_mem_properties_intel *properties, size_t size,
                             cl_uint alignment, cl_int *status, void *place, int in_place) {
    return allocate(CL_MEM_TYPE_SHARED_INTEL, context, device, properties, size, alignment, status, place, in_place);
}

void *opencl_usm_alloc_function(cl_context context, int type) {
    if (!opencl_context_function(context, "clMemFreeINTEL"))
        return NULL;
    return type == CL_MEM_TYPE_HOST_INTEL     ? (void *)allocate_host
           : type == CL_MEM_TYPE_DEVICE_INTEL ? (void *)allocate_on_device
                                              : (void *)allocate_shared;
}

static void give_back(struct usm_range range) {
    usm_uses_drop(range.uses);
    if (range.is_vendors)
        vendors_free(range.context, range.start);
}

void opencl_usm_keep(void *start, size_t size, int type, cl_context context, cl_device_id device, int is_placed) {
    struct usm_range range = {.start = start, .size = size, .type = (cl_unified_shared_memory_type_intel)type, .context = context,
                              .device = device, .is_vendors = !is_placed};
    struct usm_range *old;
    if (!start)
        return;
    usm_lock();
    /* Memory that a session left, or that a guest that lies names twice. */
    while ((old = usm_overlapping(range.start, range.size))) {
        struct usm_range taken = usm_take(old);
        usm_unlock();
        give_back(taken);
        usm_lock();
    }
    usm_add(range);
    usm_unlock();
}

/* ---- Freeing --------------------------------------------------------------------------------- */

/* Bytes of the allocation that begins there; 0: none does. */
size_t opencl_usm_size(cl_context context, const void *pointer) {
    usm_lock();
    const struct usm_range *range = usm_starting_at(pointer, context);
    size_t size = range ? range->size : 0;
    usm_unlock();
    return size;
}

static cl_int free_range(cl_context context, void *pointer, int waits) {
    if (!pointer)
        return CL_SUCCESS;
    usm_lock();
    struct usm_range *range = usm_starting_at(pointer, context);
    struct usm_range taken = range ? usm_take(range) : (struct usm_range){0};
    usm_unlock();
    if (!taken.start)
        return CL_INVALID_VALUE;
    if (waits)
        usm_uses_wait(taken.uses);
    give_back(taken);
    return CL_SUCCESS;
}

static cl_int free_now(cl_context context, void *pointer) {
    return free_range(context, pointer, 0);
}

static cl_int free_unused(cl_context context, void *pointer) {
    return free_range(context, pointer, 1);
}

void *opencl_usm_free_function(int waits) {
    return waits ? (void *)free_unused : (void *)free_now;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

/* True if so many bytes are zero-copy memory, or part of an allocation. An end is a pointer into what it ends, too. */
int opencl_usm_has(const void *pointer, size_t size) {
    const char *first = pointer;
    uintptr_t end;
    if (!pointer)
        return 1;
    if (__builtin_add_overflow((uintptr_t)pointer, size, &end))
        return 0;
    if (aviary_is_zerocopy(first) && (!size || aviary_is_zerocopy(first + size - 1)))
        return 1;
    usm_lock();
    int is_known = usm_at(first, size) || (!size && usm_at(first - 1, 1));
    usm_unlock();
    return is_known;
}

/* True if the information about a kernel names no pointer that this session does not have. */
int opencl_usm_may_follow(cl_kernel_exec_info name, size_t size, const void *value) {
    void *const *pointers = value;
    if (name != CL_KERNEL_EXEC_INFO_USM_PTRS_INTEL)
        return 1;
    for (size_t i = 0; pointers && i < size / sizeof pointers[0]; i++)
        if (!opencl_usm_has(pointers[i], 0))
            return 0;
    return 1;
}

cl_int opencl_usm_list(cl_kernel kernel, size_t size, const void *value) {
    const void *const *pointers = value;
    size_t count = size / sizeof pointers[0], own = 0;
    const void **list = calloc(count + 1, sizeof *list);
    if (!list)
        return CL_OUT_OF_HOST_MEMORY;
    usm_lock();
    for (size_t i = 0; i < count; i++) {
        const struct usm_range *range = usm_at(pointers[i], 0);
        /* A launch fails if the list names memory of others, which a CPU reaches anyway. */
        if (range && range->is_vendors)
            list[own++] = pointers[i];
    }
    usm_unlock();
    size_t rest = size % sizeof pointers[0];
    size_t told = own * sizeof *list + rest;
    cl_int status = clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_USM_PTRS_INTEL, told, told ? list : NULL);
    free(list);
    return status;
}

static int lies_in(const void *pointer, size_t size, int *is_vendors, cl_unified_shared_memory_type_intel *type) {
    usm_lock();
    const struct usm_range *range = usm_at(pointer, size);
    *is_vendors = range && range->is_vendors;
    *type = range ? range->type : CL_MEM_TYPE_UNKNOWN_INTEL;
    usm_unlock();
    return range != NULL;
}

/* ---- Commands that the vendor's library would refuse for memory that is not its own --------------- */

static cl_int migrate(cl_command_queue queue, const void *pointer, size_t size, cl_mem_migration_flags flags, cl_uint waits,
                      const cl_event *wait_list, cl_event *event) {
    int is_vendors;
    cl_unified_shared_memory_type_intel type;
    clEnqueueMigrateMemINTEL_fn vendors = (clEnqueueMigrateMemINTEL_fn)opencl_queue_function(queue, "clEnqueueMigrateMemINTEL");
    int is_known = lies_in(pointer, size, &is_vendors, &type);
    if (vendors && (!is_known || is_vendors))
        return vendors(queue, pointer, size, flags, waits, wait_list, event);
    if (type != CL_MEM_TYPE_SHARED_INTEL || (flags & ~(cl_mem_migration_flags)(CL_MIGRATE_MEM_OBJECT_HOST
                                                                               | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED)))
        return CL_INVALID_VALUE;
    /* It is where it was. */
    return clEnqueueMarkerWithWaitList(queue, waits, wait_list, event);
}

void *opencl_usm_migrate_function(cl_command_queue queue) {
    return opencl_queue_function(queue, "clEnqueueMigrateMemINTEL") ? (void *)migrate : NULL;
}

/* ---- Commands whose ends a free waits for ---------------------------------------------------------- */

/* The command of this event of the server's own uses both. */
static void used(const void *to, const void *from, cl_event own) {
    usm_use(to, own);
    usm_use(from, own);
    if (own)
        clReleaseEvent(own);
}

static cl_int copy(cl_command_queue queue, cl_bool blocking, void *to, const void *from, size_t size, cl_uint waits,
                   const cl_event *wait_list, cl_event *event) {
    clEnqueueMemcpyINTEL_fn vendors = (clEnqueueMemcpyINTEL_fn)opencl_queue_function(queue, "clEnqueueMemcpyINTEL");
    cl_event own = NULL;
    cl_event *told = event || blocking ? event : &own;
    if (opencl_usm_leaves(to, size) || opencl_usm_leaves(from, size))
        return CL_INVALID_VALUE;
    cl_int status = vendors(queue, blocking, to, from, size, waits, wait_list, told);
    used(to, from, own);
    return status;
}

void *opencl_usm_copy_function(cl_command_queue queue) {
    return opencl_queue_function(queue, "clEnqueueMemcpyINTEL") ? (void *)copy : NULL;
}

static cl_int fill(cl_command_queue queue, void *to, const void *pattern, size_t pattern_size, size_t size, cl_uint waits,
                   const cl_event *wait_list, cl_event *event) {
    clEnqueueMemFillINTEL_fn vendors = (clEnqueueMemFillINTEL_fn)opencl_queue_function(queue, "clEnqueueMemFillINTEL");
    cl_event own = NULL;
    if (opencl_usm_leaves(to, size))
        return CL_INVALID_VALUE;
    cl_int status = vendors(queue, to, pattern, pattern_size, size, waits, wait_list, event ? event : &own);
    used(to, NULL, own);
    return status;
}

void *opencl_usm_fill_function(cl_command_queue queue) {
    return opencl_queue_function(queue, "clEnqueueMemFillINTEL") ? (void *)fill : NULL;
}

static cl_int set(cl_command_queue queue, void *to, cl_int value, size_t size, cl_uint waits, const cl_event *wait_list,
                  cl_event *event) {
    clEnqueueMemsetINTEL_fn vendors = (clEnqueueMemsetINTEL_fn)opencl_queue_function(queue, "clEnqueueMemsetINTEL");
    cl_event own = NULL;
    if (opencl_usm_leaves(to, size))
        return CL_INVALID_VALUE;
    cl_int status = vendors(queue, to, value, size, waits, wait_list, event ? event : &own);
    used(to, NULL, own);
    return status;
}

void *opencl_usm_set_function(cl_command_queue queue) {
    return opencl_queue_function(queue, "clEnqueueMemsetINTEL") ? (void *)set : NULL;
}
