/* The names of the variables of an image of device code. */
#ifndef CUDA_IMAGE_VARIABLES_H
#define CUDA_IMAGE_VARIABLES_H

#include <stddef.h>
#include <stdint.h>

struct cuda_names {
    char **names;
    size_t count;
};

/* Fills in the names, once each and in order; 0: the image cannot be read, and nothing is known. Of a fat binary the entries count that
 * devices of these generations can run (bit N: compute capability N.x). */
int cuda_find_variables(const void *image, size_t bytes, uint64_t generations, struct cuda_names *found);
void cuda_drop_names(struct cuda_names *names);

#endif
