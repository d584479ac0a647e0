/* The memory behind chunks: who may use it, and how it leaves and returns. All is called with the lock of the places. */
#include "placement.h"
#include <stdlib.h>

/* Devices that the application has contexts on. A kernel or a copy of each may use the others' memory where the devices
 * reach each other. (The driver's own memory is for the others' copies always, for their kernels once peer access is enabled.) */
static int in_use[CUDA_MOST_PLACES];

CUmemAllocationProp cuda_memory_on(int device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = cuda_is_offerable(device) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                                                   : CU_MEM_HANDLE_TYPE_NONE,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUresult set_access(CUdeviceptr base, size_t bytes, int device) {
    CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(base, bytes, &access, 1);
}

static int reaches(int device, int owner) {
    int answer = 0;
    return in_use[device] && cuDeviceCanAccessPeer(&answer, device, owner) == CUDA_SUCCESS && answer;
}

/* Memory of `owner`: for it, and for the devices that reach it. */
static CUresult allow(CUdeviceptr base, size_t bytes, int owner) {
    CUresult status = set_access(base, bytes, owner);
    for (int device = 0; device < CUDA_MOST_PLACES && status == CUDA_SUCCESS; device++)
        if (device != owner && reaches(device, owner))
            status = set_access(base, bytes, device);
    return status;
}

int cuda_begin_use(int device) {
    int before = in_use[device];
    in_use[device] = 1;
    return !before;
}

void cuda_let_use(const struct chunk *chunk, int device) {
    if (reaches(device, chunk->device))
        set_access(chunk->base, chunk->bytes, device);
}

/* As `allow`, of what was just mapped: on failure it is mapped no longer. */
static CUresult allow_mapped(CUdeviceptr base, size_t bytes, int owner) {
    CUresult status = allow(base, bytes, owner);
    if (status != CUDA_SUCCESS)
        cuMemUnmap(base, bytes);
    return status;
}

CUresult cuda_map_chunk(struct chunk *chunk) {
    CUresult status = cuda_map_memory(&chunk->memory, chunk->base, chunk->bytes, 0, 0);
    return status == CUDA_SUCCESS ? allow_mapped(chunk->base, chunk->bytes, chunk->device) : status;
}

/* ---- Memory that leaves and returns ---------------------------------------------------------- */

size_t cuda_list_pieces(const struct chunk *chunk, struct cuda_evictable *list, size_t room) {
    const struct cuda_memory *memory = &chunk->memory;
    size_t count = 0;
    for (size_t i = 0; i < memory->count && !memory->offer.stands; i++)
        if (memory->pieces[i].memory && count++ < room)
            list[count - 1] = (struct cuda_evictable){chunk->base + i * memory->piece_bytes, cuda_piece_size(memory, i), 0, i};
    return count;
}

CUresult cuda_piece_leaves(struct chunk *chunk, size_t piece) {
    struct cuda_memory *memory = &chunk->memory;
    if (piece >= memory->count || !memory->pieces[piece].memory)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuMemUnmap(chunk->base + piece * memory->piece_bytes, cuda_piece_size(memory, piece));
    if (status == CUDA_SUCCESS)
        cuda_drop_piece(memory, piece);
    return status;
}

CUresult cuda_piece_returns(struct chunk *chunk, size_t piece) {
    struct cuda_memory *memory = &chunk->memory;
    if (piece >= memory->count)
        return CUDA_ERROR_INVALID_VALUE;
    /* As in cuda_physical_returns. */
    if (memory->pieces[piece].memory)
        return CUDA_SUCCESS;
    CUresult status = cuda_make_piece(memory, piece);
    if (status != CUDA_SUCCESS)
        return status;
    CUdeviceptr base = chunk->base + piece * memory->piece_bytes;
    size_t bytes = cuda_piece_size(memory, piece);
    status = cuMemMap(base, bytes, 0, memory->pieces[piece].memory, 0);
    if (status == CUDA_SUCCESS)
        status = allow_mapped(base, bytes, chunk->device);
    if (status != CUDA_SUCCESS)
        cuda_drop_piece(memory, piece);
    return status;
}
