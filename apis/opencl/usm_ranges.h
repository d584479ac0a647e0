/* The allocations of unified shared memory (cl_intel_unified_shared_memory) that one side knows, by address (usm_ranges.c). */
#ifndef OPENCL_USM_RANGES_H
#define OPENCL_USM_RANGES_H

#include "opencl_types.h"

struct usm_uses;

struct usm_range {
    char *start;
    size_t size;
    cl_unified_shared_memory_type_intel type;
    cl_context context;
    cl_device_id device;
    /* In the guest: the zero-copy memory that it lies in; NULL: `start` is a number that only the vendor's library follows. */
    void *block;
    /* On the server: whether the vendor's library allocated it, the commands that use it. */
    int is_vendors;
    struct usm_uses *uses;
};

/* Between both calls ranges can be looked at by address, and neither come nor go. */
void usm_lock(void);
void usm_unlock(void);
/* The range of which these bytes are a part; NULL: there is none. With the lock. */
struct usm_range *usm_at(const void *pointer, size_t size);
/* The range whose first byte this is. With the lock. */
struct usm_range *usm_starting_at(const void *start, cl_context context);
/* The first range that shares a byte with these; NULL: there is none. With the lock. */
struct usm_range *usm_overlapping(const void *start, size_t size);
/* Takes a range out of the list. With the lock. */
struct usm_range usm_take(struct usm_range *range);
/* 0: there is no memory for it. With the lock. */
int usm_add(struct usm_range range);

/* True if so many bytes begin in an allocation and leave it. */
int opencl_usm_leaves(const void *pointer, size_t size);

#endif
