/* Device memory in parts and pieces, and the hashes of these. */
#ifndef CUDA_UNCHANGED_H
#define CUDA_UNCHANGED_H

#ifndef CUDA_VERSION
#include "cuda_types.h"
#endif
#include <stddef.h>
#include <stdint.h>

/* moving.c: makes a context that lives current on this thread; 0: it is none. `cuda_leave_context` takes it away again. */
int cuda_enter_context(CUcontext context);
void cuda_leave_context(void);
/* Different for all contexts that this process has had; 0: this is none that lives. */
uint64_t cuda_context_serial(CUcontext context);

/* Bytes of device memory, to be copied while a context is current. */
struct cuda_moved_part {
    CUcontext context;
    CUdeviceptr pointer;
    uint64_t bytes;
    /* Copies pass it over: of an input, the content is there already; of an output, it stays. */
    int is_there;
};

/* A part is copied and hashed in pieces, the last of which may be shorter. */
enum { CUDA_PIECE_BYTES = 4 << 20 };
struct cuda_hash {
    uint64_t a, b;
};
/* Pieces of all parts. */
size_t cuda_pieces_of(const struct cuda_moved_part *parts, size_t count);
/* Parts with the hashes of their pieces. */
struct cuda_hashed {
    struct cuda_moved_part *parts;
    size_t count;
    struct cuda_hash *hashes;
};
/* By piece, in an array that the caller frees: 1 where the content is what it was earlier, at the same place of all parts, one after
 * the other, and the host has it; NULL: it is nowhere. `host_has`: by piece of the earlier parts. */
unsigned char *cuda_pieces_unchanged(const struct cuda_hashed *now, const struct cuda_hashed *earlier, const unsigned char *host_has);
/* Bytes of the pieces of which `same` is not 0. */
uint64_t cuda_bytes_of_same(const struct cuda_moved_part *parts, size_t count, const unsigned char *same);
/* Hashes of all pieces, in an array that the caller frees; NULL: the device cannot tell, or not quickly. */
struct cuda_hash *cuda_hash_parts(CUcontext context, const struct cuda_moved_part *parts, size_t count);
/* Whether the piece with this content has that hash: reckoned by the processor. */
int cuda_hash_is_right(const struct cuda_hash *hash, const void *content, size_t bytes);

/* ---- copy_buffers.c: page-locked memory for copies --------------------------------------------------- */

struct cuda_copy_buffer {
    char *memory;
    CUstream stream;
    CUcontext context;
    uint64_t serial;
    struct cuda_copy_buffer *next;
};
/* Of CUDA_PIECE_BYTES, in this context, which is current; NULL: there is none. */
struct cuda_copy_buffer *cuda_take_copy_buffer(CUcontext context);
/* It is kept for the next time. */
void cuda_put_copy_buffer(struct cuda_copy_buffer *buffer);
/* Tells the runtime how much is kept. */
void cuda_tell_copy_buffers(void);
/* Gives all back that is kept. */
void cuda_drop_copy_buffers(void);

/* ---- moving_copies.c: many parts at once ------------------------------------------------------------- */

uint64_t cuda_bytes_of_parts(const struct cuda_moved_part *parts, size_t count);
/* Makes the device memory of a part. */
typedef CUresult (*cuda_part_comes)(void *data, size_t part);
/* From memory of the host to the parts, one after the other; those that are there already are passed over. `comes`: each of them is
 * made just before it is copied to, while others are copied; NULL: all are made. */
CUresult cuda_copy_in(const struct cuda_moved_part *parts, size_t count, const char *host, cuda_part_comes comes, void *data);
/* To the host, without the pieces of which `same` is not 0; NULL: with all. */
CUresult cuda_copy_out(const struct cuda_moved_part *parts, size_t count, char *host, const unsigned char *same);

#endif
