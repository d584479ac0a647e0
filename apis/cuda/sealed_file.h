/* A small file that cannot change any more: content that passes from process to process as a descriptor (sealed_file.c). */
#ifndef CUDA_SEALED_FILE_H
#define CUDA_SEALED_FILE_H

#include <stddef.h>

/* The descriptor of a new one; -1: there can be none. */
int cuda_new_sealed_file(const char *name, const void *content, size_t bytes);
/* True if the first `bytes` could be read. */
int cuda_read_sealed_file(int descriptor, void *content, size_t bytes);

#endif
