/* Which commands use which allocations of unified shared memory (usm_uses.c). */
#ifndef OPENCL_USM_USES_H
#define OPENCL_USM_USES_H

#include "usm_ranges.h"

/* The command of this event uses the allocation that the pointer lies in, if any. */
void usm_use(const void *pointer, cl_event event);
/* Waits for all commands that use it. Without the lock of the ranges. */
void usm_uses_wait(struct usm_uses *uses);
void usm_uses_drop(struct usm_uses *uses);

#endif
