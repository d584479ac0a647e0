/* Physical memory in pieces: of chunks (chunk_memory.c), and what applications map themselves (physical.c). Where a device is shared out,
 * large memory has more than one piece; they leave the device and return one by one, so that of one program no more has to leave than
 * another one needs. */
#ifndef AVIARY_CUDA_PIECES_H
#define AVIARY_CUDA_PIECES_H
#include "server.h"

struct cuda_piece {
    /* 0: it is out. */
    CUmemGenericAllocationHandle memory;
    /* Of its first export or its import; -1: there was none. The driver exports memory that was imported no more. */
    int descriptor;
};

struct cuda_memory {
    CUmemAllocationProp property;
    size_t bytes;
    /* One after the other. All but the last are of `piece_bytes`, which follow from `bytes` and `count`. */
    struct cuda_piece *pieces;
    size_t count, piece_bytes;
    /* To other processes. */
    struct cuda_offer offer;
};

/* New memory. On failure there is none. */
CUresult cuda_create_memory(struct cuda_memory *memory, const CUmemAllocationProp *property, size_t bytes);
/* Memory of another process, which it has in so many pieces. Takes the descriptors; on failure they are the caller's. */
CUresult cuda_import_memory(struct cuda_memory *memory, size_t bytes, const int *descriptors, size_t count);
/* Withdraws its offer, too. Mappings hold on to it. Answers what the driver says to the last piece. */
CUresult cuda_release_memory(struct cuda_memory *memory);

size_t cuda_piece_size(const struct cuda_memory *memory, size_t piece);
/* As cuMemMap does: of memory in more than one piece, all or nothing. */
CUresult cuda_map_memory(const struct cuda_memory *memory, CUdeviceptr base, size_t bytes, size_t offset, unsigned long long flags);

/* Exports a piece, unless it was before: a descriptor that stays the memory's own; -1: the driver does not. */
int cuda_export_piece(struct cuda_memory *memory, size_t piece);
/* Offers all of it to other processes, unless that is done. */
CUresult cuda_offer_memory(struct cuda_memory *memory);

/* A piece that is mapped nowhere leaves the device; and new memory for it. */
void cuda_drop_piece(struct cuda_memory *memory, size_t piece);
CUresult cuda_make_piece(struct cuda_memory *memory, size_t piece);

#endif
