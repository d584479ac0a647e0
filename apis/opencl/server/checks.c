/* Checks and queries of the API server with the vendor's own queries. */
#include "server.h"
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Functions that the vendor's library does not export ----------------------------------- */

static cl_int platform_ids(cl_uint entries, cl_platform_id *platforms, cl_uint *count) {
    return clGetPlatformIDs(entries, platforms, count);
}

void *opencl_platforms_function(void) {
    return (void *)platform_ids;
}

void *opencl_platform_function(cl_platform_id platform, const char *name) {
    return platform ? clGetExtensionFunctionAddressForPlatform(platform, name) : NULL;
}

void *opencl_device_function(cl_device_id device, const char *name) {
    cl_platform_id platform = NULL;
    if (!device || clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) != CL_SUCCESS)
        return NULL;
    return opencl_platform_function(platform, name);
}

void *opencl_context_function(cl_context context, const char *name) {
    cl_device_id devices[64];
    size_t bytes = 0;
    if (!context || clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &bytes) != CL_SUCCESS
        || bytes < sizeof devices[0] || bytes > sizeof devices
        || clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, devices, NULL) != CL_SUCCESS)
        return NULL;
    return opencl_device_function(devices[0], name);
}

void *opencl_queue_function(cl_command_queue queue, const char *name) {
    cl_device_id device = NULL;
    if (!queue || clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) != CL_SUCCESS)
        return NULL;
    return opencl_device_function(device, name);
}

void *opencl_kernel_function(cl_kernel kernel, const char *name) {
    cl_context context = NULL;
    if (!kernel || clGetKernelInfo(kernel, CL_KERNEL_CONTEXT, sizeof context, &context, NULL) != CL_SUCCESS)
        return NULL;
    return opencl_context_function(context, name);
}

void *opencl_memory_function(cl_mem memory, const char *name) {
    cl_context context = NULL;
    if (!memory || clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof context, &context, NULL) != CL_SUCCESS)
        return NULL;
    return opencl_context_function(context, name);
}

/* The loader calls through a table of the runtime's that may have no such function: NULL then. */
static const struct _cl_icd_dispatch *dispatch_of(const void *object) {
    return object ? *(const struct _cl_icd_dispatch *const *)object : NULL;
}

void *opencl_sub_groups_function(cl_kernel kernel) {
    const struct _cl_icd_dispatch *dispatch = dispatch_of(kernel);
    return dispatch ? (void *)dispatch->clGetKernelSubGroupInfoKHR : NULL;
}

void *opencl_set_property_function(cl_command_queue queue) {
    const struct _cl_icd_dispatch *dispatch = dispatch_of(queue);
    return dispatch ? (void *)dispatch->clSetCommandQueueProperty : NULL;
}

/* A command buffer can only be asked through functions that its platform must be known for. Each
 * live one keeps its platform's query function here; there are never many. */
struct command_buffer_origin {
    cl_command_buffer_khr buffer;
    cl_platform_id platform;
    struct command_buffer_origin *next;
};
static struct command_buffer_origin *command_buffers;
static pthread_mutex_t command_buffers_lock = PTHREAD_MUTEX_INITIALIZER;

void opencl_note_command_buffer(cl_command_buffer_khr buffer, cl_command_queue queue) {
    cl_device_id device = NULL;
    cl_platform_id platform = NULL;
    if (!buffer || !queue || clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) != CL_SUCCESS
        || clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) != CL_SUCCESS)
        return;
    pthread_mutex_lock(&command_buffers_lock);
    struct command_buffer_origin *origin = command_buffers;
    while (origin && origin->buffer != buffer)
        origin = origin->next;
    if (!origin && (origin = calloc(1, sizeof *origin))) {
        origin->buffer = buffer;
        origin->next = command_buffers;
        command_buffers = origin;
    }
    if (origin)
        origin->platform = platform;
    pthread_mutex_unlock(&command_buffers_lock);
}

void *opencl_command_buffer_function(cl_command_buffer_khr buffer, const char *name) {
    cl_platform_id platform = NULL;
    pthread_mutex_lock(&command_buffers_lock);
    for (struct command_buffer_origin *origin = command_buffers; origin; origin = origin->next)
        if (origin->buffer == buffer)
            platform = origin->platform;
    pthread_mutex_unlock(&command_buffers_lock);
    return opencl_platform_function(platform, name);
}

/* ---- Properties ---------------------------------------------------------------------------- */

int opencl_context_properties_allowed(const cl_context_properties *properties) {
    for (; properties && properties[0] != 0; properties += 2)
        if (properties[0] != CL_CONTEXT_PLATFORM && properties[0] != CL_CONTEXT_INTEROP_USER_SYNC)
            return 0;
    return 1;
}

int opencl_memory_properties_allowed(const cl_mem_properties *properties) {
    return !properties || properties[0] == 0;
}

/* Runtimes look behind elements that they should refuse. */
int opencl_all_given(cl_uint count, const void *const *pointers) {
    for (cl_uint i = 0; pointers && i < count; i++)
        if (!pointers[i])
            return 0;
    return count == 0 || pointers;
}

/* True where a list that semicolons divide has the name of that length. */
static int is_listed(const char *list, const char *name, size_t length) {
    for (;; list++) {
        size_t next = strcspn(list, ";");
        if (next == length && memcmp(list, name, length) == 0)
            return 1;
        list += next;
        if (!*list)
            return 0;
    }
}

/* True where each of the devices has all of these kernels. Runtimes look for others, too, and use what they did not find:
 * a guest could end its API server so. */
int opencl_built_in_kernels(cl_uint count, const cl_device_id *devices, const char *names) {
    int all = devices && names && count;
    for (cl_uint i = 0; all && i < count; i++) {
        size_t bytes = 0;
        char *known = NULL;
        all = devices[i] && clGetDeviceInfo(devices[i], CL_DEVICE_BUILT_IN_KERNELS, 0, NULL, &bytes) == CL_SUCCESS
              && (known = calloc(1, bytes + 1))
              && clGetDeviceInfo(devices[i], CL_DEVICE_BUILT_IN_KERNELS, bytes, known, NULL) == CL_SUCCESS;
        for (const char *name = names; all && *name;) {
            size_t length = strcspn(name, ";");
            all = is_listed(known, name, length);
            name += length + (name[length] == ';');
        }
        free(known);
    }
    return all;
}

/* The platform's real address is nobody's business outside this process. */
static cl_int context_info(cl_context context, cl_context_info name, size_t size, void *value, size_t *size_ret) {
    if (name == CL_CONTEXT_REFERENCE_COUNT)
        return opencl_context_references(context, size, value, size_ret);
    cl_int status = clGetContextInfo(context, name, size, value, size_ret);
    if (status == CL_SUCCESS && name == CL_CONTEXT_PROPERTIES && value) {
        cl_context_properties *list = value;
        for (size_t i = 0; i + 1 < size / sizeof *list && list[i] != 0; i += 2)
            if (list[i] == CL_CONTEXT_PLATFORM)
                list[i + 1] = 0;
    }
    return status;
}

void *opencl_context_info_function(void) {
    return (void *)context_info;
}

/* The application's memory has another address here, which nobody outside this process is told. */
static cl_int memory_info(cl_mem memory, cl_mem_info name, size_t size, void *value, size_t *size_ret) {
    cl_int status = clGetMemObjectInfo(memory, name, size, value, size_ret);
    if (status == CL_SUCCESS && name == CL_MEM_HOST_PTR && value && size >= sizeof(void *))
        memset(value, 0, sizeof(void *));
    return status;
}

void *opencl_memory_info_function(void) {
    return (void *)memory_info;
}

/* ---- Buffers in zero-copy memory ------------------------------------------------------------ */

/* `place`: where the buffer has to lie; NULL: where the vendor likes. */
static cl_mem_flags placed(cl_mem_flags flags, void **host_ptr, void *place) {
    if (!place || (flags & CL_MEM_USE_HOST_PTR))
        return flags;
    *host_ptr = place;
    /* With CL_MEM_COPY_HOST_PTR the guest puts the bytes there itself. */
    return (flags & ~(cl_mem_flags)(CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)) | CL_MEM_USE_HOST_PTR;
}

static cl_mem create_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host_ptr, cl_int *status,
                            void *place) {
    cl_mem_flags used = placed(flags, &host_ptr, place);
    return clCreateBuffer(context, used, size, host_ptr, status);
}

static cl_mem create_buffer_with_properties(cl_context context, const cl_mem_properties *properties,
                                            cl_mem_flags flags, size_t size, void *host_ptr, cl_int *status, void *place) {
    cl_mem_flags used = placed(flags, &host_ptr, place);
    return clCreateBufferWithProperties(context, properties, used, size, host_ptr, status);
}

void *opencl_create_buffer_function(void) {
    return (void *)create_buffer;
}

void *opencl_create_buffer_with_properties_function(void) {
    return (void *)create_buffer_with_properties;
}

/* The vendor keeps memory as long as a sub-buffer, an image made from it or a command uses it, whatever the application released: so
 * long it counts against the tenant's limit, and the zero-copy memory that the object lies in is not the guest's again. */
struct ending {
    uint64_t charge;
    void *place;
};

static void CL_CALLBACK has_ended(cl_mem memory, void *data) {
    struct ending ending = *(struct ending *)data;
    free(data);
    if (opencl_ends_unseen(memory))
        return;
    if (ending.charge)
        aviary_charge_return(ending.charge);
    if (ending.place)
        aviary_zerocopy_return(ending.place);
}

void opencl_keep_charge(cl_mem memory) {
    const struct opencl_object *object = memory ? metadata(struct opencl_object, memory) : NULL;
    struct ending *ending = object ? malloc(sizeof *ending) : NULL;
    if (!ending)
        return;
    /* The object's number, which it has in every process that the session moves to. */
    uint64_t charge = aviary_object_id(memory);
    *ending = (struct ending){charge, object->place};
    if (clSetMemObjectDestructorCallback(memory, has_ended, ending) != CL_SUCCESS)
        free(ending);
    else if (charge)
        aviary_charge_keep(charge);
}

/* Before `opencl_keep_charge`. */
void opencl_keep_place(cl_mem buffer, void *place) {
    struct opencl_object *object = place ? metadata(struct opencl_object, buffer) : NULL;
    if (!object)
        return;
    object->placed = 1;
    object->place = place;
}

void opencl_keep_sub_place(cl_mem buffer, cl_mem parent) {
    struct opencl_object *object = opencl_in_place(parent) ? metadata(struct opencl_object, buffer) : NULL;
    if (object)
        object->placed = 1;
}

/* ---- Kernel arguments ---------------------------------------------------------------------- */

static int begins_with(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Which object a by-value argument of an opaque type is. */
static int opaque_kind(const char *type) {
    if (begins_with(type, "sampler_t"))
        return OPENCL_SAMPLER;
    if (begins_with(type, "queue_t"))
        return OPENCL_QUEUE;
    if (begins_with(type, "image") || begins_with(type, "pipe") || strstr(type, "image1d") || strstr(type, "image2d")
        || strstr(type, "image3d"))
        return OPENCL_MEMORY;
    return OPENCL_NO_OBJECT;
}

enum { NO_SUCH_ARGUMENT = -1, LOCAL_MEMORY = -2, UNKNOWN = -3 };

/* The kind of the kernel's argument: a kind of object, OPENCL_NO_OBJECT for a value, or one of the above. */
static int argument_kind(cl_kernel kernel, cl_uint index) {
    cl_kernel_arg_address_qualifier space;
    cl_int status = clGetKernelArgInfo(kernel, index, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof space, &space, NULL);
    if (status == CL_KERNEL_ARG_INFO_NOT_AVAILABLE)
        return UNKNOWN;
    if (status != CL_SUCCESS)
        return NO_SUCH_ARGUMENT;
    if (space == CL_KERNEL_ARG_ADDRESS_LOCAL)
        return LOCAL_MEMORY;
    char type[128] = "";
    int kind = OPENCL_NO_OBJECT;
    /* A longer name than this belongs to no opaque type. */
    if (clGetKernelArgInfo(kernel, index, CL_KERNEL_ARG_TYPE_NAME, sizeof type, type, NULL) == CL_SUCCESS)
        kind = opaque_kind(type);
    return kind == OPENCL_NO_OBJECT && space != CL_KERNEL_ARG_ADDRESS_PRIVATE ? OPENCL_MEMORY : kind;
}

static int known_argument_kind(cl_kernel kernel, cl_uint index) {
    struct opencl_object *object = metadata(struct opencl_object, kernel);
    if (!object || index >= sizeof object->arguments)
        return argument_kind(kernel, index);
    if (object->arguments[index] == 0)
        object->arguments[index] = (unsigned char)(argument_kind(kernel, index) + 4);
    return object->arguments[index] - 4;
}

/* True if all devices of the kernel's context are CPUs. */
static int runs_on_cpus(cl_kernel kernel) {
    struct opencl_object *object = metadata(struct opencl_object, kernel);
    if (object && object->reach)
        return object->reach == 1;
    cl_context context = NULL;
    cl_device_id devices[64];
    size_t bytes = 0;
    int cpus = clGetKernelInfo(kernel, CL_KERNEL_CONTEXT, sizeof context, &context, NULL) == CL_SUCCESS
               && clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &bytes) == CL_SUCCESS && bytes <= sizeof devices
               && clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, devices, NULL) == CL_SUCCESS;
    for (size_t i = 0; cpus && i < bytes / sizeof devices[0]; i++) {
        cl_device_type type = 0;
        cpus = clGetDeviceInfo(devices[i], CL_DEVICE_TYPE, sizeof type, &type, NULL) == CL_SUCCESS
               && (type & CL_DEVICE_TYPE_CPU);
    }
    if (object)
        object->reach = cpus ? 1 : 2;
    return cpus;
}

/* True if there is memory at an address. */
static int is_mapped(const void *p) {
    uintptr_t page = (uintptr_t)p & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
    return msync((void *)page, 1, MS_ASYNC) == 0 || errno != ENOMEM;
}

/* True if an argument may be set: an object where the kernel takes an object, plain bytes where it
 * takes a value. The guest decided which of both it sent; a lie ends here. */
cl_int opencl_check_argument(cl_kernel kernel, cl_uint index, size_t size, const void *value, int kind) {
    /* Bytes of any other size cannot pass for an object: the vendor checks the size. */
    if (!value || size != sizeof(void *))
        return CL_SUCCESS;
    /* No object at all is what the vendor knows to judge. */
    if (kind == OPENCL_NO_OBJECT && *(void *const *)value == NULL)
        return CL_SUCCESS;
    int expected = known_argument_kind(kernel, index);
    switch (expected) {
    case NO_SUCH_ARGUMENT:
        return CL_SUCCESS; /* The vendor says the same about the call itself. */
    case LOCAL_MEMORY:
        return CL_INVALID_ARG_VALUE;
    case UNKNOWN:
        /* The vendor only knows if the program was built with -cl-kernel-arg-info. Plain bytes may be
         * an address then. A kernel on a CPU runs inside this process and reaches all of its memory
         * anyway, so the process is the boundary; elsewhere bytes that are the address of anything
         * here are refused, so that none can pass for an object. */
        if (kind != OPENCL_NO_OBJECT || runs_on_cpus(kernel) || !is_mapped(*(void *const *)value))
            return CL_SUCCESS;
        aviary_log("kernel argument %u refused: build the program with -cl-kernel-arg-info", index);
        return CL_INVALID_ARG_VALUE;
    case OPENCL_SAMPLER:
        return kind == expected ? CL_SUCCESS : CL_INVALID_SAMPLER;
    case OPENCL_MEMORY:
        return kind == expected ? CL_SUCCESS : CL_INVALID_MEM_OBJECT;
    case OPENCL_QUEUE:
        return kind == expected ? CL_SUCCESS : CL_INVALID_DEVICE_QUEUE;
    default:
        return kind == expected ? CL_SUCCESS : CL_INVALID_ARG_VALUE;
    }
}

/* ---- Shared virtual memory ------------------------------------------------------------------ */

/* How many of the devices of the kernel's context reach all of this process's memory, and how many there are. */
static cl_uint count_system_svm(cl_kernel kernel, cl_uint *all) {
    cl_context context = NULL;
    cl_device_id devices[64];
    size_t bytes = 0;
    cl_uint count = 0;
    *all = 0;
    if (clGetKernelInfo(kernel, CL_KERNEL_CONTEXT, sizeof context, &context, NULL) != CL_SUCCESS
        || clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof devices, devices, &bytes) != CL_SUCCESS)
        return 0;
    for (*all = 0; *all < bytes / sizeof devices[0]; ++*all) {
        cl_device_svm_capabilities shares = 0;
        clGetDeviceInfo(devices[*all], CL_DEVICE_SVM_CAPABILITIES, sizeof shares, &shares, NULL);
        count += (shares & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) != 0;
    }
    return count;
}

/* Zero-copy memory is not the vendor's own. A device that shares all of the host's memory needs no
 * list of the pointers that a kernel follows, and may refuse one that names foreign memory. That it shares all of the host's memory
 * the application is not told, as that is not the application's. */
static cl_int kernel_exec_info(cl_kernel kernel, cl_kernel_exec_info name, size_t size, const void *value) {
    cl_uint all;
    if (name == CL_KERNEL_EXEC_INFO_USM_PTRS_INTEL && value)
        return opencl_usm_list(kernel, size, value);
    if (name == CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM && value && size == sizeof(cl_bool) && *(const cl_bool *)value
        && count_system_svm(kernel, &all))
        return CL_INVALID_OPERATION;
    cl_int status = clSetKernelExecInfo(kernel, name, size, value);
    if (status != CL_INVALID_VALUE || name != CL_KERNEL_EXEC_INFO_SVM_PTRS || !value || size % sizeof(void *) || !size)
        return status;
    return count_system_svm(kernel, &all) == all && all ? CL_SUCCESS : status;
}

void *opencl_exec_info_function(void) {
    return (void *)kernel_exec_info;
}

/* The same of memory that is to be moved: it is where it was. */
static cl_int migrate_svm(cl_command_queue queue, cl_uint count, const void **pointers, const size_t *sizes, cl_mem_migration_flags flags,
                          cl_uint waits, const cl_event *wait_list, cl_event *event) {
    const cl_mem_migration_flags known = CL_MIGRATE_MEM_OBJECT_HOST | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED;
    cl_device_id device = NULL;
    cl_device_svm_capabilities shares = 0;
    cl_int status = clEnqueueSVMMigrateMem(queue, count, pointers, sizes, flags, waits, wait_list, event);
    if (status != CL_INVALID_VALUE || !count || (flags & ~known)
        || clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) != CL_SUCCESS
        || clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof shares, &shares, NULL) != CL_SUCCESS
        || !(shares & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM))
        return status;
    return clEnqueueMarkerWithWaitList(queue, waits, wait_list, event);
}

void *opencl_svm_migrate_function(void) {
    return (void *)migrate_svm;
}

/* ---- Events ------------------------------------------------------------------------------------ */

static cl_int event_info(cl_event event, cl_event_info name, size_t size, void *value, size_t *size_ret) {
    cl_int status;
    if (opencl_remade_info(event, name, size, value, size_ret, &status))
        return status;
    status = clGetEventInfo(event, name, size, value, size_ret);
    if (status == CL_SUCCESS && name == CL_EVENT_REFERENCE_COUNT && value)
        *(cl_uint *)value -= opencl_own_references(event);
    return status;
}

void *opencl_event_info_function(void) {
    return (void *)event_info;
}

/* ---- Transfers that end after their call ---------------------------------------------------- */

/* The event that says when the data is there. The application that asked for the event owns a reference: this
 * adds one; otherwise the only reference is the transfer's own. */
cl_event opencl_transfer_token(cl_event event, int wanted) {
    if (event && wanted)
        clRetainEvent(event);
    return event;
}

int opencl_transfer_done(cl_event event) {
    cl_int status = CL_COMPLETE;
    if (!event)
        return 1;
    if (!opencl_has_ended(event))
        return 0;
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    clReleaseEvent(event);
    return status < 0 ? -1 : 1;
}

/* Bytes of a mapped region of an image, from the pitches that the vendor answered. */
size_t opencl_mapped_bytes(cl_mem image, size_t width, size_t height, size_t depth, size_t row_pitch,
                           size_t slice_pitch) {
    return opencl_region_bytes(image, width, height, depth, row_pitch, slice_pitch);
}
