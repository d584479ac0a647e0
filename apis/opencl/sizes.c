/* Sizes of what a call touches. Compiled into both sides: the guest computes how much to send, the
 * server computes the same from what arrived and refuses a call on which they do not agree. */
#include "sizes.h"
#include <aviary.h>

/* A size that no address space holds: the function that gets it refuses the call. */
#define OPENCL_ABSURD ((size_t)1 << 62)

static size_t times(size_t a, size_t b) {
    size_t product;
    return __builtin_mul_overflow(a, b, &product) || product > OPENCL_ABSURD ? OPENCL_ABSURD : product;
}

static size_t plus(size_t a, size_t b) {
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) || sum > OPENCL_ABSURD ? OPENCL_ABSURD : sum;
}

/* Bytes from the start of a box of `rows` times `slices` rows of `row` bytes to the end of its last row. */
static size_t extent(size_t row, size_t rows, size_t slices, size_t row_pitch, size_t slice_pitch) {
    if (row == 0 || rows == 0 || slices == 0)
        return 0;
    return plus(row, plus(times(rows - 1, row_pitch), times(slices - 1, slice_pitch)));
}

/* Host bytes that a rectangular transfer touches, counted from the host pointer. */
size_t opencl_rect_bytes(size_t x, size_t y, size_t z, size_t row, size_t rows, size_t slices, size_t row_pitch,
                         size_t slice_pitch) {
    size_t pitch = row_pitch ? row_pitch : row;
    size_t slice = slice_pitch ? slice_pitch : times(rows, pitch);
    size_t bytes = extent(row, rows, slices, pitch, slice);
    return bytes ? plus(plus(x, times(y, pitch)), plus(times(z, slice), bytes)) : 0;
}

/* True if such a transfer leaves bytes between its rows alone. */
int opencl_rect_gaps(size_t x, size_t y, size_t z, size_t row, size_t rows, size_t slices, size_t row_pitch,
                     size_t slice_pitch) {
    size_t pitch = row_pitch ? row_pitch : row;
    size_t slice = slice_pitch ? slice_pitch : times(rows, pitch);
    if (x || y || z)
        return 1;
    return (rows > 1 && pitch != row) || (slices > 1 && slice != times(rows, pitch)) || (slices > 1 && pitch != row);
}

static size_t channels(cl_channel_order order) {
    switch (order) {
    case CL_R: case CL_A: case CL_INTENSITY: case CL_LUMINANCE: case CL_DEPTH: case CL_DEPTH_STENCIL: case CL_Rx:
        return 1;
    case CL_RG: case CL_RA: case CL_RGx:
        return 2;
    case CL_RGB: case CL_RGBx: case CL_sRGB: case CL_sRGBx:
        return 3;
    case CL_RGBA: case CL_BGRA: case CL_ARGB: case CL_ABGR: case CL_sRGBA: case CL_sBGRA:
        return 4;
    default:
        return 0;
    }
}

/* Bytes of a pixel; 0 for a format that is not known here. */
static size_t pixel(const cl_image_format *format) {
    if (!format)
        return 0;
    size_t count = channels(format->image_channel_order);
    switch (format->image_channel_data_type) {
    case CL_SNORM_INT8: case CL_UNORM_INT8: case CL_SIGNED_INT8: case CL_UNSIGNED_INT8:
        /* An x stands for padding: these formats still take a whole pixel. */
        return format->image_channel_order == CL_sRGBx ? 4 : count;
    case CL_SNORM_INT16: case CL_UNORM_INT16: case CL_SIGNED_INT16: case CL_UNSIGNED_INT16: case CL_HALF_FLOAT:
        return count * 2;
    case CL_SIGNED_INT32: case CL_UNSIGNED_INT32: case CL_FLOAT:
        return count * 4;
    case CL_UNORM_SHORT_565: case CL_UNORM_SHORT_555:
        return count ? 2 : 0;
    case CL_UNORM_INT_101010: case CL_UNORM_INT_101010_2: case CL_UNORM_INT24:
        return count ? 4 : 0;
    default:
        return 0;
    }
}

/* Bytes of a box of pixels with the given pitches (0: tight). */
size_t opencl_box_size(const cl_image_format *format, size_t width, size_t height, size_t depth, size_t row_pitch,
                       size_t slice_pitch) {
    size_t row = times(width, pixel(format));
    size_t pitch = row_pitch ? row_pitch : row;
    return extent(row, height, depth, pitch, slice_pitch ? slice_pitch : times(height, pitch));
}

/* Bytes of an image by its description: what its host pointer covers (`host`), or what it takes itself. */
size_t opencl_image_size(const cl_image_format *format, const cl_image_desc *desc, int host) {
    if (!format || !desc)
        return 0;
    size_t row = host ? desc->image_row_pitch : 0, slice = host ? desc->image_slice_pitch : 0;
    switch (desc->image_type) {
    case CL_MEM_OBJECT_IMAGE1D:
        return opencl_box_size(format, desc->image_width, 1, 1, row, 0);
    case CL_MEM_OBJECT_IMAGE1D_BUFFER:
        return opencl_box_size(format, desc->image_width, 1, 1, 0, 0);
    case CL_MEM_OBJECT_IMAGE1D_ARRAY:
        return opencl_box_size(format, desc->image_width, 1, desc->image_array_size, row, slice ? slice : row);
    case CL_MEM_OBJECT_IMAGE2D:
        return opencl_box_size(format, desc->image_width, desc->image_height, 1, row, 0);
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        return opencl_box_size(format, desc->image_width, desc->image_height, desc->image_array_size, row, slice);
    case CL_MEM_OBJECT_IMAGE3D:
        return opencl_box_size(format, desc->image_width, desc->image_height, desc->image_depth, row, slice);
    default:
        return 0;
    }
}

/* Learns, once per object and side, what an image is made of. */
static const struct opencl_object *image_facts(cl_mem image) {
    struct opencl_object *object = image ? metadata(struct opencl_object, image) : NULL;
    if (!object || object->image_known)
        return object;
    size_t element = 0;
    cl_mem_object_type type = 0;
    if (clGetImageInfo(image, CL_IMAGE_ELEMENT_SIZE, sizeof element, &element, NULL) != CL_SUCCESS
        || clGetMemObjectInfo(image, CL_MEM_TYPE, sizeof type, &type, NULL) != CL_SUCCESS)
        return NULL;
    object->image_element = element;
    object->image_type = type;
    object->image_known = 1;
    return object;
}

/* Host bytes that reading or writing a region of `image` touches. */
size_t opencl_region_bytes(cl_mem image, size_t width, size_t height, size_t depth, size_t row_pitch,
                           size_t slice_pitch) {
    const struct opencl_object *facts = image_facts(image);
    if (!facts)
        return 0;
    size_t row = times(width, facts->image_element);
    size_t pitch = row_pitch ? row_pitch : row;
    /* The rows of an array of one-dimensional images are its slices. */
    if (facts->image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY && slice_pitch)
        pitch = slice_pitch;
    return extent(row, height, depth, pitch, slice_pitch ? slice_pitch : times(height, pitch));
}

/* True if such a transfer leaves bytes between the rows alone. */
int opencl_region_gaps(cl_mem image, size_t width, size_t height, size_t depth, size_t row_pitch,
                       size_t slice_pitch) {
    const struct opencl_object *facts = image_facts(image);
    if (!facts)
        return 0;
    size_t tight = times(times(width, facts->image_element), times(height, depth));
    return opencl_region_bytes(image, width, height, depth, row_pitch, slice_pitch) != tight;
}

/* Words of a partition list up to and including the zero that ends it, of `most` at most; 0: there is none among them, or no list. */
size_t opencl_partition_words(const cl_device_partition_property *properties, size_t most) {
    int is_counts = properties && most && properties[0] == CL_DEVICE_PARTITION_BY_COUNTS;
    /* The zero behind CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, a zero itself, is one that programs leave out. */
    for (size_t at = is_counts ? 1 : 0; properties && at < most; at += is_counts ? 1 : 2)
        if (properties[at] == 0)
            return at + 1;
    return 0;
}

/* Devices of a program, and the bytes of its binary for one of them. */
size_t opencl_binary_count(cl_program program, size_t param_value_size) {
    cl_uint devices = 0;
    if (!program || clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL) != CL_SUCCESS)
        return 0;
    size_t room = param_value_size / sizeof(void *);
    return room < devices ? room : devices;
}

size_t opencl_binary_size(cl_program program, size_t index) {
    size_t sizes[64] = {0}, bytes = 0;
    if (!program || index >= 64 || clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, 0, NULL, &bytes) != CL_SUCCESS
        || bytes > sizeof sizes || clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, bytes, sizes, NULL) != CL_SUCCESS)
        return 0;
    return sizes[index];
}

/* True if a buffer lies in zero-copy memory: its mappings are that memory. */
int opencl_in_place(cl_mem buffer) {
    const struct opencl_object *object = buffer ? metadata(struct opencl_object, buffer) : NULL;
    return object && object->placed;
}

cl_ulong opencl_largest_allocation(cl_context context) {
    cl_device_id devices[64];
    size_t bytes = 0;
    cl_ulong most = (cl_ulong)-1;
    if (clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof devices, devices, &bytes) != CL_SUCCESS)
        return 0;
    for (size_t i = 0; i < bytes / sizeof devices[0]; i++) {
        cl_ulong own = 0;
        if (clGetDeviceInfo(devices[i], CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof own, &own, NULL) != CL_SUCCESS)
            return 0;
        most = own < most ? own : most;
    }
    return most;
}
