/* The decision if a kernel may run in submissions, and the source for kernels that need another one (rewrite.c). Needs no OpenCL. */
#ifndef OPENCL_SLICING_REWRITE_H
#define OPENCL_SLICING_REWRITE_H

#include <stddef.h>

enum slice_verdict { SLICE_UNKNOWN, SLICE_BY_OFFSET, SLICE_BY_REWRITING, SLICE_NEVER };

/* How a kernel may be sliced; if never, `reason` says why. */
enum slice_verdict slice_judge(const char *source, const char *options, const char *kernel, char *reason, size_t room);

/* The source with which parts of an NDRange get the answers of the whole, to be freed; NULL if that cannot be written. */
char *slice_rewrite(const char *source);

#endif
