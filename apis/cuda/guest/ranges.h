/* Memory: which addresses are whose, memory that both sides share or have a copy of, and copies. */
#ifndef AVIARY_CUDA_RANGES_H
#define AVIARY_CUDA_RANGES_H
#include "guest/context.h"
#include "sealed_file.h"

/* ranges.c */
int cuda_is_device_address(CUdeviceptr pointer);
/* How memory of the host became known to the driver: one way ends it. */
enum host_origin { HOST_REGISTERED, HOST_ALLOCATED, HOST_MANAGED, HOST_VARIABLE };
void cuda_note_host(void *memory, size_t bytes, unsigned int flags, enum host_origin origin);
CUresult cuda_claim_host(void *memory, size_t bytes, unsigned int flags);
int cuda_take_host(void *memory, enum host_origin origin, size_t *bytes);
int cuda_in_managed(CUdeviceptr pointer, size_t bytes);
void *cuda_stale_registration(const void *memory, size_t bytes);
void cuda_forget_device_ranges(CUdevice device);
void cuda_note_global(const CUdeviceptr *pointer, const size_t *bytes);
void cuda_note_opened(CUdeviceptr pointer, size_t bytes, CUdevice device);
void cuda_forget_opened(CUdeviceptr pointer);
void cuda_forget_freed(CUdeviceptr pointer, cuuint64_t serial);

/* shared_memory.c */
int cuda_shares_memory(void);
size_t cuda_whole_pages(size_t bytes);
CUresult cuda_shared_alloc(void **memory, size_t bytes, unsigned int register_flags);
CUresult cuda_shared_free(void *memory, size_t bytes);

/* registered_memory.c */
CUresult cuda_register_in_place(void *memory, size_t bytes, unsigned int flags);
CUresult cuda_unregister_in_place(void *memory);
int cuda_is_in_place(const void *memory, size_t bytes);
void *cuda_in_arena(const void *memory, size_t bytes);

/* mirrored_memory.c */
CUresult cuda_send_variables(void);
int cuda_is_mapped(const void *memory);
void cuda_waited(CUresult result);

/* variables.c */
CUresult cuda_mapped_alloc(void **memory, size_t bytes);
CUresult cuda_mapped_free(void *memory);

/* copy_sides.c */
struct cuda_host_sides {
    void *from, *to;
    size_t from_bytes, to_bytes;
};
int cuda_shared(const void *memory, size_t bytes);
int cuda_is_readable(CUdeviceptr address, size_t bytes);
void cuda_split_copy(const CUDA_MEMCPY3D *wanted, CUDA_MEMCPY3D *copy, struct cuda_host_sides *sides);

/* copies.c */
CUresult cuda_copy_2d(const CUDA_MEMCPY2D *flat, CUstream stream);
CUresult cuda_copy_3d(const CUDA_MEMCPY3D *wanted, CUstream stream);

#endif
