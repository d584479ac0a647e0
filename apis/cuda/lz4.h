/* LZ4 blocks, as fat binaries have them. */
#ifndef CUDA_LZ4_H
#define CUDA_LZ4_H

#include <stddef.h>
#include <stdint.h>

/* Unpacks a block whose content has exactly `to_size` bytes; 0: it is none. No byte outside of both is touched, whatever it says. */
int cuda_unpack_lz4(const uint8_t *from, size_t from_size, char *to, size_t to_size);

#endif
