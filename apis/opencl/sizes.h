/* Sizes of the memory that a call touches, computed on both sides, which must agree (sizes.c). */
#ifndef OPENCL_SIZES_H
#define OPENCL_SIZES_H

#include "opencl_types.h"

/* Bytes of a box of pixels with the given pitches (0: tight). */
size_t opencl_box_size(const cl_image_format *format, size_t width, size_t height, size_t depth, size_t row_pitch, size_t slice_pitch);

/* Host bytes that reading or writing a region of `image` touches. */
size_t opencl_region_bytes(cl_mem image, size_t width, size_t height, size_t depth, size_t row_pitch, size_t slice_pitch);

/* True if a buffer lies in zero-copy memory: its mappings are that memory. */
int opencl_in_place(cl_mem buffer);

/* Words of a partition list, of `most` at most; 0: it does not end among them. */
size_t opencl_partition_words(const cl_device_partition_property *properties, size_t most);

/* The most that every device of the context can allocate at once; 0: unknown. */
cl_ulong opencl_largest_allocation(cl_context context);

#endif
