/* Knowledge of the guest library: where the application's own memory is, which objects
 * can be kernel arguments, where its ICD entry points are. */
#include "guest.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- The ICD ------------------------------------------------------------------------------ */

void *opencl_extension_address(const char *name) {
    if (!name)
        return NULL;
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0)
        return (void *)clIcdGetPlatformIDsKHR;
    if (strcmp(name, "clGetPlatformInfo") == 0)
        return (void *)clGetPlatformInfo;
    if (strcmp(name, "clGetExtensionFunctionAddressForPlatform") == 0)
        return (void *)clGetExtensionFunctionAddressForPlatform;
    /* This old form names no platform: the first one that has the function answers. */
    cl_platform_id platforms[16];
    cl_uint count = 0;
    if (clIcdGetPlatformIDsKHR(16, platforms, &count) != CL_SUCCESS)
        return NULL;
    for (cl_uint i = 0; i < count && i < 16; i++) {
        void *address = clGetExtensionFunctionAddressForPlatform(platforms[i], name);
        if (address)
            return address;
    }
    return NULL;
}

void opencl_fix_context_properties(cl_context context, cl_context_info name, size_t size, void *value) {
    if (name != CL_CONTEXT_PROPERTIES || !value || size < 2 * sizeof(cl_context_properties))
        return;
    size_t bytes = 0;
    cl_device_id device = NULL;
    cl_platform_id platform = NULL;
    if (clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &bytes) != CL_SUCCESS || bytes < sizeof device)
        return;
    cl_device_id *devices = malloc(bytes);
    if (!devices)
        return;
    if (clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, devices, NULL) == CL_SUCCESS)
        device = devices[0];
    free(devices);
    if (!device || clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) != CL_SUCCESS)
        return;
    cl_context_properties *list = value;
    for (size_t i = 0; i + 1 < size / sizeof *list && list[i] != 0; i += 2)
        if (list[i] == CL_CONTEXT_PLATFORM)
            list[i + 1] = (cl_context_properties)platform;
}

/* ---- Objects ------------------------------------------------------------------------------ */

int opencl_object_kind(const void *handle) {
    const struct opencl_object *object = object_of(handle);
    return object && object->kind != OPENCL_NO_OBJECT ? object->kind : OPENCL_MEMORY;
}

void opencl_note_object(const void *handle, int kind) {
    struct opencl_object *object = object_of(handle);
    static atomic_ulong serials;
    if (!object)
        return;
    object->kind = kind;
    object->serial = atomic_fetch_add(&serials, 1) + 1;
}

static void note_memory(cl_mem memory, cl_mem_flags flags, void *host_ptr, size_t row, size_t slice) {
    struct opencl_object *object = object_of(memory);
    if (!object)
        return;
    object->kind = OPENCL_MEMORY;
    if (!(flags & CL_MEM_USE_HOST_PTR))
        return;
    object->host_ptr = host_ptr;
    object->host_row_pitch = row;
    object->host_slice_pitch = slice;
}

void opencl_note_buffer(cl_mem buffer, cl_context context, cl_mem_flags flags, size_t size, void *host_ptr) {
    note_memory(buffer, flags, host_ptr, 0, 0);
    struct opencl_object *object = object_of(buffer);
    if (!object)
        return;
    object->plain = 1;
    object->svm = (flags & CL_MEM_USE_HOST_PTR) && opencl_svm_owns(host_ptr);
    object->context = context;
    object->flags = flags;
    object->size = size;
}

void opencl_note_observer(cl_mem memory) {
    struct opencl_object *object = object_of(memory);
    if (object)
        object->observed = 1;
}

void opencl_note_sub_buffer(cl_mem buffer, cl_mem parent, const void *info) {
    const struct opencl_object *whole = object_of(parent);
    const cl_buffer_region *region = info;
    char *host_ptr = whole && whole->host_ptr && region ? whole->host_ptr + region->origin : NULL;
    note_memory(buffer, CL_MEM_USE_HOST_PTR, host_ptr, 0, 0);
}

void opencl_note_box(cl_mem image, cl_mem_flags flags, const cl_image_format *format, size_t width, size_t height,
                     size_t depth, size_t row, size_t slice, void *host_ptr) {
    (void)depth;
    size_t pitch = row ? row : opencl_box_size(format, width, 1, 1, 0, 0);
    note_memory(image, flags, host_ptr, pitch, slice ? slice : pitch * height);
}

void opencl_note_image(cl_mem image, cl_mem_flags flags, const cl_image_format *format, const cl_image_desc *desc,
                       void *host_ptr) {
    if (!desc)
        return;
    int flat = desc->image_type == CL_MEM_OBJECT_IMAGE1D || desc->image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    /* The rows of an array of one-dimensional images are its slices. */
    size_t row = desc->image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY && desc->image_slice_pitch ? desc->image_slice_pitch
                                                                                            : desc->image_row_pitch;
    opencl_note_box(image, flags, format, desc->image_width, flat ? 1 : desc->image_height, 1, row,
                    desc->image_slice_pitch, host_ptr);
    if (desc->mem_object && !host_ptr) {
        const struct opencl_object *base = object_of(desc->mem_object);
        if (base && base->host_ptr)
            opencl_note_box(image, CL_MEM_USE_HOST_PTR, format, desc->image_width, flat ? 1 : desc->image_height, 1,
                            row, desc->image_slice_pitch, base->host_ptr);
    }
}

/* ---- Kernel arguments and launches that cannot fail ----------------------------------------- */

static int shape_of(size_t size, const void *value, cl_context *context) {
    if (!value)
        return SHAPE_LOCAL;
    if (size != sizeof(void *))
        return SHAPE_VALUE;
    void *word;
    memcpy(&word, value, sizeof word);
    if (!word)
        return SHAPE_NULL;
    if (!aviary_is_handle(word))
        return SHAPE_VALUE;
    const struct opencl_object *object = object_of(word);
    if (!object || !object->plain)
        return NO_SHAPE;
    *context = object->context;
    return SHAPE_BUFFER;
}

int opencl_argument_repeats(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
    cl_context context = NULL;
    if (index >= OPENCL_REMEMBERED || size > UINT32_MAX || !aviary_is_handle(kernel))
        return 0;
    const struct opencl_object *object = object_of(kernel);
    int shape = shape_of(size, value, &context);
    return object && shape != NO_SHAPE && object->argument_shape[index] == shape && object->argument_size[index] == size
           && (shape != SHAPE_BUFFER || object->context == context);
}

void opencl_note_argument(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
    cl_context context = NULL;
    struct opencl_object *object = object_of(kernel);
    if (!object || opencl_argument_repeats(kernel, index, size, value))
        return;
    /* An argument of a new shape: the next launch has to be judged again. */
    object->launched_on = 0;
    if (index >= OPENCL_REMEMBERED)
        return;
    int shape = size > UINT32_MAX ? NO_SHAPE : shape_of(size, value, &context);
    object->argument_shape[index] = (unsigned char)shape;
    object->argument_size[index] = (unsigned int)size;
    if (shape == SHAPE_BUFFER)
        object->context = context;
}

void opencl_forget_launch(cl_kernel kernel) {
    struct opencl_object *object = object_of(kernel);
    if (object)
        object->launched_on = 0;
}

/* Where a kernel's record has what was said of indirect accesses; NULL: the information is another. */
static unsigned char *indirect_access(struct opencl_object *kernel, cl_kernel_exec_info name, size_t size, const void *value) {
    int is_known = kernel && value && size == sizeof(cl_bool) && name >= CL_KERNEL_EXEC_INFO_INDIRECT_HOST_ACCESS_INTEL
                   && name <= CL_KERNEL_EXEC_INFO_INDIRECT_SHARED_ACCESS_INTEL;
    return is_known ? &kernel->indirect[name - CL_KERNEL_EXEC_INFO_INDIRECT_HOST_ACCESS_INTEL] : NULL;
}

/* The mark by which a value is remembered: 0 is nothing. */
static unsigned char indirect_value(const void *value) {
    cl_bool follows;
    memcpy(&follows, value, sizeof follows);
    return follows ? 2 : 1;
}

int opencl_exec_info_repeats(cl_kernel kernel, cl_kernel_exec_info name, size_t size, const void *value) {
    const unsigned char *accepted = indirect_access(object_of(kernel), name, size, value);
    return accepted && *accepted == indirect_value(value);
}

void opencl_note_exec_info(cl_kernel kernel, cl_kernel_exec_info name, size_t size, const void *value) {
    if (opencl_exec_info_repeats(kernel, name, size, value))
        return;
    unsigned char *accepted = indirect_access(object_of(kernel), name, size, value);
    opencl_forget_launch(kernel);
    if (accepted)
        *accepted = indirect_value(value);
}

/* True if the sizes of a launch are as good as those of the accepted one: the same local size, which
 * divides the global one, and numbers far from overflowing. */
int opencl_launch_repeats(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                          const size_t *global, const size_t *local) {
    if (!aviary_is_handle(kernel) || !aviary_is_handle(queue) || !global)
        return 0;
    const struct opencl_object *object = object_of(kernel), *on = object_of(queue);
    if (!object || !on || !on->serial || object->launched_on != on->serial || object->launched_dimensions != dimensions)
        return 0;
    for (cl_uint i = 0; i < dimensions; i++) {
        size_t size = local ? local[i] : 0;
        if (size != object->launched_local[i] || global[i] == 0 || global[i] >= (size_t)1 << 31
            || (offset && offset[i] >= (size_t)1 << 31) || (size && global[i] % size))
            return 0;
    }
    return 1;
}

void opencl_note_launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *local) {
    struct opencl_object *object = object_of(kernel), *on = object_of(queue);
    if (!object || !on || dimensions > 3)
        return;
    object->launched_on = on->serial;
    object->launched_dimensions = dimensions;
    for (cl_uint i = 0; i < 3; i++)
        object->launched_local[i] = local && i < dimensions ? local[i] : 0;
}

/* ---- Calls that are refused here ------------------------------------------------------------ */

/* Their data could not be sent, or is not sent at all, so that the vendor could not judge them. */

static void *nothing(cl_int *status, cl_int error) {
    if (status)
        *status = error;
    return NULL;
}

cl_mem opencl_no_buffer(cl_int *status) {
    return nothing(status, CL_INVALID_BUFFER_SIZE);
}

void *opencl_no_usm(cl_int *status) {
    return nothing(status, CL_INVALID_BUFFER_SIZE);
}

cl_context opencl_no_context(cl_int *status) {
    return nothing(status, CL_INVALID_VALUE);
}

cl_program opencl_no_program(cl_int *status) {
    return nothing(status, CL_INVALID_VALUE);
}

/* A transfer of more than any object here has. */
int opencl_is_beyond(cl_command_queue queue, cl_mem memory, size_t size) {
    return size > OPENCL_LARGEST_PLACE && aviary_is_handle(queue) && aviary_is_handle(memory);
}

int opencl_is_box_beyond(cl_command_queue queue, cl_mem memory, const size_t *region) {
    size_t plane, bytes;
    if (!region)
        return 0;
    int too_many = __builtin_mul_overflow(region[0], region[1], &plane) || __builtin_mul_overflow(plane, region[2], &bytes);
    return opencl_is_beyond(queue, memory, too_many ? SIZE_MAX : bytes);
}

/* ---- The application's own memory --------------------------------------------------------- */

/* Where a mapping of `memory` has to appear: NULL if the library may choose. */
void *opencl_host_address(cl_mem memory, size_t offset) {
    const struct opencl_object *object = object_of(memory);
    return object && object->host_ptr ? object->host_ptr + offset : NULL;
}

void *opencl_host_pixel(cl_mem image, size_t x, size_t y, size_t z) {
    const struct opencl_object *object = object_of(image);
    size_t element = 0;
    if (!object || !object->host_ptr
        || clGetImageInfo(image, CL_IMAGE_ELEMENT_SIZE, sizeof element, &element, NULL) != CL_SUCCESS)
        return NULL;
    return object->host_ptr + x * element + y * object->host_row_pitch + z * object->host_slice_pitch;
}

void opencl_fix_host_pointer(cl_mem memory, cl_mem_info name, size_t size, void *value) {
    const struct opencl_object *object = object_of(memory);
    if (name == CL_MEM_HOST_PTR && value && size >= sizeof(void *) && object)
        *(void **)value = object->host_ptr;
    if (name == CL_MEM_USES_SVM_POINTER && value && size >= sizeof(cl_bool) && object && object->svm)
        *(cl_bool *)value = CL_TRUE;
}
