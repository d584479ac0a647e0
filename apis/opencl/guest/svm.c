/* Shared virtual memory, and commands whose work is the guest's own: freeing it, and native kernels. */
#include "guest.h"
#include "sizes.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int opencl_svm_owns(const void *p) {
    return p && aviary_is_zerocopy(p);
}

/* A device of its own memory (a GPU) only knows pointers that its driver allocated, and those are not
 * at the same address here: shared virtual memory is offered where kernels run on the host. */
int opencl_runs_on_host(cl_device_id device) {
    cl_device_type type = 0;
    return clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof type, &type, NULL) == CL_SUCCESS && (type & CL_DEVICE_TYPE_CPU);
}

int opencl_svm_possible(cl_context context) {
    cl_device_id devices[64];
    size_t bytes = 0;
    if (clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof devices, devices, &bytes) != CL_SUCCESS)
        return 0;
    for (size_t i = 0; i < bytes / sizeof devices[0]; i++)
        if (!opencl_runs_on_host(devices[i]))
            return 0;
    return bytes != 0;
}

/* ---- What is there ---------------------------------------------------------------------------------- */

/* A device claims what this library carries: shared virtual memory, and native kernels, which work on memory of both processes, where
 * there is such memory. None shares all memory of the application. */
void opencl_fix_svm_capabilities(cl_device_id device, cl_device_info name, size_t size, void *value) {
    if (!value)
        return;
    if (name == CL_DEVICE_SVM_CAPABILITIES && size >= sizeof(cl_device_svm_capabilities)) {
        const cl_device_svm_capabilities never = CL_DEVICE_SVM_FINE_GRAIN_SYSTEM;
        cl_device_svm_capabilities *claimed = value;
        *claimed = opencl_runs_on_host(device) && opencl_shares_memory() ? *claimed & ~never : 0;
    }
    if (name == CL_DEVICE_EXECUTION_CAPABILITIES && size >= sizeof(cl_device_exec_capabilities) && !opencl_shares_memory())
        *(cl_device_exec_capabilities *)value &= ~(cl_device_exec_capabilities)CL_EXEC_NATIVE_KERNEL;
}

static int lacks_svm(cl_context context) {
    return context && !(opencl_computes_in_host_memory(context) && opencl_shares_memory());
}

/* An object that is none is the server's to refuse. */
int opencl_queue_lacks_svm(cl_command_queue queue) {
    const struct opencl_object *on = object_of(queue);
    return on && lacks_svm(on->context);
}

int opencl_kernel_lacks_svm(cl_kernel kernel) {
    struct opencl_object *object = object_of(kernel);
    cl_context context = NULL;
    if (!object)
        return 0;
    if (!object->reach && clGetKernelInfo(kernel, CL_KERNEL_CONTEXT, sizeof context, &context, NULL) == CL_SUCCESS)
        object->reach = lacks_svm(context) ? 2 : 1;
    return object->reach == 2;
}

int opencl_exec_info_lacks_svm(cl_kernel kernel, cl_kernel_exec_info name) {
    return (name == CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM || name == CL_KERNEL_EXEC_INFO_SVM_PTRS) && opencl_kernel_lacks_svm(kernel);
}

/* ---- Events of commands that are markers for the vendor -------------------------------------------- */

static void stands_for(cl_event event, cl_command_type type) {
    struct opencl_object *object = object_of(event);
    if (object)
        object->command_type = type;
}

/* What the command of an event is to the application, if it asked for one. */
void opencl_note_type(const cl_event *event, cl_command_type type) {
    if (event)
        stands_for(*event, type);
}

/* Enqueues a command without effect that waits as any other would: in a queue without order, for its list alone. A marker does not
 * there: without a list, or with PoCL's library, it waits for all that is before it. */
static cl_int enqueue_marker(cl_command_queue queue, cl_uint events, const cl_event *wait_list, cl_event *marker) {
    const struct opencl_object *on = object_of(queue);
    const unsigned char nothing = 0;
    cl_int status = CL_SUCCESS;
    if (!on || on->in_order)
        return clEnqueueMarkerWithWaitList(queue, events, wait_list, marker);
    cl_mem unused = clCreateBuffer(on->context, CL_MEM_READ_WRITE, sizeof nothing, NULL, &status);
    if (status != CL_SUCCESS)
        return status;
    status = clEnqueueFillBuffer(queue, unused, &nothing, sizeof nothing, 0, sizeof nothing, events, wait_list, marker);
    clReleaseMemObject(unused);
    return status;
}

cl_int opencl_enqueue_in_place_of(cl_command_type type, cl_command_queue queue, cl_uint events, const cl_event *wait_list,
                                  cl_event *event) {
    cl_int status = enqueue_marker(queue, events, wait_list, event);
    if (status == CL_SUCCESS && event)
        stands_for(*event, type);
    return status;
}

void opencl_fix_command_type(cl_event event, cl_event_info name, size_t size, void *value) {
    const struct opencl_object *object = object_of(event);
    if (name == CL_EVENT_COMMAND_TYPE && value && size >= sizeof(cl_command_type) && object && object->command_type)
        *(cl_command_type *)value = object->command_type;
}

/* ---- Allocations -------------------------------------------------------------------------------- */

/* Allocations of the application, for the checks that a vendor's library makes of its own SVM. */
struct allocation {
    char *start;
    size_t size;
    struct allocation *next;
};
static struct allocation *allocations;
static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;

/* Bytes from the pointer to the end of the allocation that it points into; 0: none. */
static size_t bytes_behind(const void *pointer) {
    size_t bytes = 0;
    pthread_mutex_lock(&allocations_lock);
    for (const struct allocation *a = allocations; a && !bytes; a = a->next) {
        size_t offset = (size_t)((const char *)pointer - a->start);
        bytes = (const char *)pointer >= a->start && offset < a->size ? a->size - offset : 0;
    }
    pthread_mutex_unlock(&allocations_lock);
    return bytes;
}

/* True if a copy of so many bytes would read bytes that it has written. */
int opencl_svm_overlap(const void *to, const void *from, size_t size) {
    uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
    return a && b && (a > b ? a - b : b - a) < size;
}

/* True if a vendor's library would take these for an allocation. */
static int is_allocation(cl_context context, cl_svm_mem_flags flags, size_t size, cl_uint alignment) {
    const cl_svm_mem_flags accesses = CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY;
    cl_svm_mem_flags access = flags & accesses;
    return (access & (access - 1)) == 0 && !((flags & CL_MEM_SVM_ATOMICS) && !(flags & CL_MEM_SVM_FINE_GRAIN_BUFFER))
           && !(flags & ~(accesses | CL_MEM_SVM_FINE_GRAIN_BUFFER | CL_MEM_SVM_ATOMICS)) && (alignment & (alignment - 1)) == 0
           && alignment <= 128 && size && size <= opencl_largest_allocation(context);
}

/* A buffer over SVM that would leave its allocation, or one of which no device could have all: what the vendor's library would say
 * of it, which never hears of it because the transport has bounds of its own. */
int opencl_is_too_large(cl_context context, cl_mem_flags flags, size_t size, const void *host_ptr) {
    if ((flags & CL_MEM_USE_HOST_PTR) && opencl_svm_owns(host_ptr)) {
        size_t bytes = bytes_behind(host_ptr);
        return bytes && size > bytes;
    }
    return size > OPENCL_LARGEST_PLACE && aviary_is_handle(context) && size > opencl_largest_allocation(context);
}

int opencl_svm_is_possible(cl_context context, cl_svm_mem_flags flags, size_t size, cl_uint alignment) {
    return aviary_is_handle(context) && is_allocation(context, flags, size, alignment);
}

void *opencl_svm_alloc(size_t size) {
    struct allocation *made = malloc(sizeof *made);
    void *memory = made ? aviary_zerocopy_alloc(size) : NULL;
    if (!memory) {
        free(made);
        return NULL;
    }
    pthread_mutex_lock(&allocations_lock);
    *made = (struct allocation){memory, size, allocations};
    allocations = made;
    pthread_mutex_unlock(&allocations_lock);
    return memory;
}

/* Bytes of the allocation that begins there; 0: there is none. */
size_t opencl_svm_size(void *pointer) {
    size_t size = 0;
    pthread_mutex_lock(&allocations_lock);
    for (const struct allocation *a = allocations; a && !size; a = a->next)
        size = a->start == pointer ? a->size : 0;
    pthread_mutex_unlock(&allocations_lock);
    return size;
}

void opencl_svm_free(void *pointer) {
    struct allocation *found = NULL;
    pthread_mutex_lock(&allocations_lock);
    for (struct allocation **at = &allocations; *at && !found; at = found ? at : &(*at)->next)
        if ((*at)->start == pointer) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&allocations_lock);
    /* Other pointers are no SVM: natively nothing happens, either. */
    if (found)
        aviary_zerocopy_free(pointer);
    free(found);
}

/* The API server has refused it, or is gone. */
void opencl_svm_give(void *place, void *given) {
    if (place && !given)
        opencl_svm_free(place);
}

/* ---- Freeing in a queue --------------------------------------------------------------------------- */

struct svm_free {
    cl_command_queue queue;
    cl_context context;
    cl_uint count;
    void (*function)(cl_command_queue, cl_uint, void **, void *);
    void *user_data;
    void *pointers[];
};

static void CL_CALLBACK svm_free_now(cl_event event, cl_int status, void *context) {
    (void)event;
    (void)status;
    struct svm_free *free_later = context;
    if (free_later->function)
        free_later->function(free_later->queue, free_later->count, free_later->pointers, free_later->user_data);
    else
        for (cl_uint i = 0; i < free_later->count; i++)
            clSVMFree(free_later->context, free_later->pointers[i]);
    free(free_later);
}

cl_int opencl_svm_enqueue_free(cl_command_queue queue, cl_uint count, void **pointers,
                               void (*function)(cl_command_queue, cl_uint, void **, void *), void *user_data,
                               cl_uint events, const cl_event *wait_list, cl_event *event) {
    if (opencl_queue_lacks_svm(queue))
        return CL_INVALID_OPERATION;
    if (count == 0 || !pointers)
        return CL_INVALID_VALUE;
    struct svm_free *later = malloc(sizeof *later + count * sizeof later->pointers[0]);
    if (!later)
        return CL_OUT_OF_HOST_MEMORY;
    const struct opencl_object *on = object_of(queue);
    *later = (struct svm_free){queue, on ? on->context : NULL, count, function, user_data};
    memcpy(later->pointers, pointers, count * sizeof pointers[0]);
    cl_event reached = NULL;
    cl_int status = enqueue_marker(queue, events, wait_list, &reached);
    if (status == CL_SUCCESS)
        status = clSetEventCallback(reached, CL_COMPLETE, svm_free_now, later);
    if (status != CL_SUCCESS)
        free(later);
    if (status == CL_SUCCESS && event) {
        stands_for(reached, CL_COMMAND_SVM_FREE);
        *event = reached;
    } else if (reached)
        clReleaseEvent(reached);
    return status;
}

/* ---- Native kernels ------------------------------------------------------------------------------- */

/* The function runs in this process, where its code is: when a marker in the queue is reached. What comes behind it in the queue
 * waits for a second marker, and that for a user event that is set when the function has returned. */
struct native_kernel {
    void (*function)(void *);
    cl_event done;
    size_t size;
    char arguments[] __attribute__((aligned(16)));
};

static void CL_CALLBACK run_native(cl_event event, cl_int status, void *context) {
    (void)event;
    struct native_kernel *kernel = context;
    if (status == CL_COMPLETE)
        kernel->function(kernel->size ? kernel->arguments : NULL);
    clSetUserEventStatus(kernel->done, status);
    clReleaseEvent(kernel->done);
    free(kernel);
}

static int runs_native_kernels(cl_command_queue queue) {
    cl_device_id device = NULL;
    cl_device_exec_capabilities can = 0;
    return clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) == CL_SUCCESS
           && clGetDeviceInfo(device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof can, &can, NULL) == CL_SUCCESS
           && (can & CL_EXEC_NATIVE_KERNEL);
}

/* Puts the addresses of the buffers where the function expects them. */
static cl_int place_buffers(struct native_kernel *kernel, const char *arguments, cl_uint count, const cl_mem *buffers,
                            const void **places) {
    for (cl_uint i = 0; i < count; i++) {
        const struct opencl_object *buffer = object_of(buffers[i]);
        size_t offset = (size_t)((const char *)places[i] - arguments);
        if (!buffer || !buffer->plain)
            return CL_INVALID_MEM_OBJECT;
        if (offset > kernel->size || kernel->size - offset < sizeof(void *))
            return CL_INVALID_VALUE;
        /* Only what lies in memory of both processes has an address here. */
        if (!buffer->place)
            return CL_OUT_OF_RESOURCES;
        memcpy(kernel->arguments + offset, &buffer->place, sizeof(void *));
    }
    return CL_SUCCESS;
}

static cl_int enqueue_native(cl_command_queue queue, struct native_kernel *kernel, cl_uint events, const cl_event *wait_list,
                             cl_event *event) {
    cl_context context = NULL;
    cl_event reached = NULL, ended = NULL;
    cl_int status = clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    if (status == CL_SUCCESS)
        kernel->done = clCreateUserEvent(context, &status);
    if (status == CL_SUCCESS)
        status = enqueue_marker(queue, events, wait_list, &reached);
    /* Where what it waits for fails, no callback may come that would end the other. */
    const cl_event both[] = {reached, kernel->done};
    if (status == CL_SUCCESS)
        status = enqueue_marker(queue, 2, both, &ended);
    if (status == CL_SUCCESS)
        status = clSetEventCallback(reached, CL_COMPLETE, run_native, kernel);
    if (reached)
        clReleaseEvent(reached);
    if (status == CL_SUCCESS && event) {
        stands_for(ended, CL_COMMAND_NATIVE_KERNEL);
        *event = ended;
    } else if (ended)
        clReleaseEvent(ended);
    return status;
}

cl_int opencl_native_kernel(cl_command_queue queue, void (*function)(void *), const void *arguments, size_t size, cl_uint count,
                            const cl_mem *buffers, const void **places, cl_uint events, const cl_event *wait_list, cl_event *event) {
    if (!object_of(queue))
        return CL_INVALID_COMMAND_QUEUE;
    if (!function || (!arguments && (size || count)) || (arguments && !size) || (count && (!buffers || !places))
        || (!count && (buffers || places)))
        return CL_INVALID_VALUE;
    if (!runs_native_kernels(queue))
        return CL_INVALID_OPERATION;
    if (size > SIZE_MAX - sizeof(struct native_kernel))
        return CL_OUT_OF_HOST_MEMORY;
    struct native_kernel *kernel = calloc(1, sizeof *kernel + size);
    if (!kernel)
        return CL_OUT_OF_HOST_MEMORY;
    kernel->function = function;
    kernel->size = size;
    if (size)
        memcpy(kernel->arguments, arguments, size);
    cl_int status = place_buffers(kernel, arguments, count, buffers, places);
    if (status == CL_SUCCESS)
        status = enqueue_native(queue, kernel, events, wait_list, event);
    if (status != CL_SUCCESS) {
        if (kernel->done)
            clReleaseEvent(kernel->done);
        free(kernel);
    }
    return status;
}
