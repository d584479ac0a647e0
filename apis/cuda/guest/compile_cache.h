/* Results that NVRTC compiled before, by source and options (see the table da9151d3 in export_tables.c). */
#ifndef AVIARY_CUDA_COMPILE_CACHE_H
#define AVIARY_CUDA_COMPILE_CACHE_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

CUresult compile_cache_open(void **key, uint32_t kind, const void *source, size_t bytes, const char *options);
CUresult compile_cache_close(void *key);
/* CUDA_ERROR_NOT_FOUND: compile, and store. */
CUresult compile_cache_find(const void *key, uint64_t unused, void **result, uint32_t *bytes);
CUresult compile_cache_store(const void *key, uint64_t unused, const void *result, size_t bytes);
CUresult compile_cache_free(void *result);

#endif
