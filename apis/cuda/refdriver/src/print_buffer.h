/* Output of kernels stays with their context until the host waits, as on a device. */
#ifndef REFDRIVER_PRINT_BUFFER_H
#define REFDRIVER_PRINT_BUFFER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* One text, printed whole. */
struct printed {
    struct printed *next;
    bool to_errors; /* standard error instead of standard output */
    size_t length;
    char text[];
};

/* A context's. `bytes` is that of all texts: never more than CU_LIMIT_PRINTF_FIFO_SIZE. */
struct print_buffer {
    struct printed *first, *last;
    size_t bytes;
};

/* Keeps a text; the oldest are lost where there is no room for it. Called without the driver's lock. */
void print_add(CUcontext context, bool to_errors, const char *text, size_t length);
/* Writes all that was kept, in order. May be called with and without the driver's lock. */
void print_flush(CUcontext context);

#endif
