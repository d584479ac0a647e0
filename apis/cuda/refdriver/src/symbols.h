/* All functions of the library with the version of CUDA that brought each variant. */
#ifndef REFDRIVER_SYMBOLS_H
#define REFDRIVER_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

struct symbol {
    const char *name; /* without suffixes */
    int version;
    int per_thread; /* the variant whose default stream is the thread's own */
    void *function;
};

/* Ends with a NULL name. */
extern const struct symbol symbols[] __attribute__((visibility("hidden")));

#endif
