/* The names of the variables of an image of device code. */
#ifndef CUDA_IMAGE_VARIABLES_H
#define CUDA_IMAGE_VARIABLES_H

#include <stddef.h>
#include <stdint.h>

/* What an image says of its variables. */
enum cuda_reading {
    CUDA_UNREADABLE,
    /* Its kernels allocate memory, which lies in no variable and of which nothing tells. */
    CUDA_ALLOCATES,
    CUDA_READ,
};

struct cuda_names {
    char **names;
    size_t count;
};

/* Fills in the names, once each and in order, of an image that can be read. Of a fat binary the entries count that devices of these
 * generations can run (bit N: compute capability N.x). Entries that are packed by Zstandard need the system's libzstd.so.1. */
enum cuda_reading cuda_find_variables(const void *image, size_t bytes, uint64_t generations, struct cuda_names *found);
void cuda_drop_names(struct cuda_names *names);

#endif
