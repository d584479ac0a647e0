/* See pieces.h. The caller has the lock that keeps the memory. */
#include "pieces.h"
#include <stdlib.h>
#include <unistd.h>

/* The most of a piece: an H200 needs about 1 ms for a GiB of such that leaves, and half of that for one that returns. Of a small
 * device's memory a piece is such a part. */
static const size_t MOST_PIECE_BYTES = (size_t)256 << 20;
static const uint64_t PIECES_OF_DEVICE = 256;

size_t cuda_piece_size(const struct cuda_memory *memory, size_t piece) {
    size_t left = memory->bytes - piece * memory->piece_bytes;
    return left < memory->piece_bytes ? left : memory->piece_bytes;
}

static size_t divide_up(size_t bytes, size_t by) {
    return bytes / by + (bytes % by != 0);
}

/* Where a device is not shared out, all of it is one piece. */
static size_t pieces_of(const CUmemAllocationProp *property, size_t bytes) {
    uint64_t part = cuda_shared_bytes(property->location.id) / PIECES_OF_DEVICE;
    size_t most = part < MOST_PIECE_BYTES ? (size_t)part : MOST_PIECE_BYTES;
    return most && bytes > most ? divide_up(bytes, most) : 1;
}

/* Divides it equally into at most so many pieces of whole granules, of which there are none yet. */
static CUresult divide(struct cuda_memory *memory, size_t count) {
    size_t granule = 1;
    CUresult status = CUDA_SUCCESS;
    if (!memory->bytes || !count)
        return CUDA_ERROR_INVALID_VALUE;
    /* One piece is what was asked for: the driver says what is wrong with its size. */
    if (count > 1)
        status = cuMemGetAllocationGranularity(&granule, &memory->property, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (status != CUDA_SUCCESS || !granule)
        return status == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : status;
    memory->piece_bytes = divide_up(divide_up(memory->bytes, count), granule) * granule;
    memory->count = divide_up(memory->bytes, memory->piece_bytes);
    memory->pieces = calloc(memory->count, sizeof *memory->pieces);
    for (size_t i = 0; memory->pieces && i < memory->count; i++)
        memory->pieces[i].descriptor = -1;
    return memory->pieces ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuda_make_piece(struct cuda_memory *memory, size_t piece) {
    CUmemGenericAllocationHandle made = 0;
    CUresult status = cuMemCreate(&made, cuda_piece_size(memory, piece), &memory->property, 0);
    memory->pieces[piece].memory = status == CUDA_SUCCESS ? made : 0;
    return status;
}

static void forget_descriptor(struct cuda_piece *piece) {
    if (piece->descriptor >= 0)
        close(piece->descriptor);
    piece->descriptor = -1;
}

void cuda_drop_piece(struct cuda_memory *memory, size_t piece) {
    CUmemGenericAllocationHandle dropped = memory->pieces[piece].memory;
    /* A descriptor holds on to the memory, too. */
    forget_descriptor(&memory->pieces[piece]);
    memory->pieces[piece].memory = 0;
    cuMemRelease(dropped);
}

CUresult cuda_release_memory(struct cuda_memory *memory) {
    CUresult status = CUDA_SUCCESS;
    cuda_end_offer(&memory->offer);
    for (size_t i = 0; memory->pieces && i < memory->count; i++) {
        forget_descriptor(&memory->pieces[i]);
        if (memory->pieces[i].memory)
            status = cuMemRelease(memory->pieces[i].memory);
    }
    free(memory->pieces);
    *memory = (struct cuda_memory){0};
    return status;
}

CUresult cuda_create_memory(struct cuda_memory *memory, const CUmemAllocationProp *property, size_t bytes) {
    *memory = (struct cuda_memory){.property = *property, .bytes = bytes};
    CUresult status = divide(memory, pieces_of(property, bytes));
    for (size_t i = 0; status == CUDA_SUCCESS && i < memory->count; i++)
        status = cuda_make_piece(memory, i);
    if (status != CUDA_SUCCESS)
        cuda_release_memory(memory);
    return status;
}

static CUresult import_piece(CUmemGenericAllocationHandle *memory, int descriptor) {
    return cuMemImportFromShareableHandle(memory, (void *)(uintptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult cuda_import_memory(struct cuda_memory *memory, size_t bytes, const int *descriptors, size_t count) {
    CUmemGenericAllocationHandle first = 0;
    *memory = (struct cuda_memory){.bytes = bytes};
    CUresult status = count ? import_piece(&first, descriptors[0]) : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS)
        return status;
    status = cuMemGetAllocationPropertiesFromHandle(&memory->property, first);
    if (status == CUDA_SUCCESS)
        status = divide(memory, count);
    if (status == CUDA_SUCCESS && memory->count != count)
        status = CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS)
        memory->pieces[0].memory = first;
    else
        cuMemRelease(first);
    for (size_t i = 1; status == CUDA_SUCCESS && i < count; i++)
        status = import_piece(&memory->pieces[i].memory, descriptors[i]);
    if (status != CUDA_SUCCESS) {
        cuda_release_memory(memory);
        return status;
    }
    for (size_t i = 0; i < count; i++)
        memory->pieces[i].descriptor = descriptors[i];
    return status;
}

CUresult cuda_map_memory(const struct cuda_memory *memory, CUdeviceptr base, size_t bytes, size_t offset, unsigned long long flags) {
    if (memory->count == 1)
        return cuMemMap(base, bytes, offset, memory->pieces[0].memory, flags);
    if (offset || flags)
        return CUDA_ERROR_INVALID_VALUE;
    /* As the driver of an H200 says. */
    if (bytes != memory->bytes)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult status = CUDA_SUCCESS;
    size_t mapped = 0;
    for (size_t i = 0; status == CUDA_SUCCESS && i < memory->count; i++) {
        status = cuMemMap(base + mapped, cuda_piece_size(memory, i), 0, memory->pieces[i].memory, 0);
        mapped += status == CUDA_SUCCESS ? cuda_piece_size(memory, i) : 0;
    }
    if (status != CUDA_SUCCESS && mapped)
        cuMemUnmap(base, mapped);
    return status;
}

/* ---- Exports -------------------------------------------------------------------------------- */

int cuda_export_piece(struct cuda_memory *memory, size_t piece) {
    struct cuda_piece *exported = &memory->pieces[piece];
    int descriptor = -1;
    if (exported->descriptor < 0 && exported->memory && cuda_is_offerable(memory->property.location.id)
        && cuMemExportToShareableHandle(&descriptor, exported->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS)
        exported->descriptor = descriptor;
    return exported->descriptor;
}

CUresult cuda_offer_memory(struct cuda_memory *memory) {
    if (memory->offer.stands)
        return CUDA_SUCCESS;
    int *descriptors = calloc(memory->count, sizeof *descriptors);
    unsigned char *are_new = calloc(memory->count, sizeof *are_new);
    CUresult status = descriptors && are_new ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; status == CUDA_SUCCESS && i < memory->count; i++) {
        are_new[i] = memory->pieces[i].descriptor < 0;
        if ((descriptors[i] = cuda_export_piece(memory, i)) < 0)
            status = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (status == CUDA_SUCCESS)
        status = cuda_offer_pieces(&memory->offer, descriptors, memory->count, memory->bytes, memory->property.location.id);
    /* The process has only so many descriptors. */
    for (size_t i = 0; status != CUDA_SUCCESS && are_new && i < memory->count; i++)
        if (are_new[i])
            forget_descriptor(&memory->pieces[i]);
    free(descriptors);
    free(are_new);
    return status;
}
