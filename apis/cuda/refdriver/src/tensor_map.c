/* Descriptions of tensors for copies that a kernel starts. No kernel that uses one can be run here: what a device
 * would read is kept in a form of our own, so that equal descriptions have equal bytes. */
#include <string.h>

#include "driver.h"

enum { DIMENSIONS = 5 };

struct description {
    uint64_t address;
    uint8_t type, rank, interleave, swizzle, promotion, fill, unused[2];
    uint64_t size[DIMENSIONS], stride[DIMENSIONS - 1];
    uint32_t step[DIMENSIONS];
    union {
        uint32_t box[DIMENSIONS];
        struct {
            int16_t lower[DIMENSIONS - 2], upper[DIMENSIONS - 2];
            uint32_t channels, pixels;
        } columns;
    };
};
_Static_assert(sizeof(struct description) == sizeof(CUtensorMap), "a description fills the map");

static CUresult describe(struct description *to, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
                         const cuuint64_t *strides, const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                         CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    if (rank < 1 || rank > DIMENSIONS || !address || (uintptr_t)address % 16 || !sizes || (rank > 1 && !strides) || !steps)
        return CUDA_ERROR_INVALID_VALUE;
    *to = (struct description){
        .address = (uintptr_t)address,
        .type = (uint8_t)type,
        .rank = (uint8_t)rank,
        .interleave = (uint8_t)interleave,
        .swizzle = (uint8_t)swizzle,
        .promotion = (uint8_t)promotion,
        .fill = (uint8_t)fill,
    };
    for (cuuint32_t i = 0; i < rank; i++) {
        if (!sizes[i] || !steps[i] || (i + 1 < rank && strides[i] % 16))
            return CUDA_ERROR_INVALID_VALUE;
        to->size[i] = sizes[i];
        to->step[i] = steps[i];
        if (i + 1 < rank)
            to->stride[i] = strides[i];
    }
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill)
{
    struct description description;
    CUresult result = map && box ? describe(&description, type, rank, address, sizes, strides, steps, interleave, swizzle, promotion, fill)
                                 : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    memcpy(description.box, box, rank * sizeof(*box));
    memcpy(map, &description, sizeof(*map));
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
                                 const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    struct description description;
    CUresult result = map && lower && upper && rank >= 3
                          ? describe(&description, type, rank, address, sizes, strides, steps, interleave, swizzle, promotion, fill)
                          : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    for (cuuint32_t i = 0; i < rank - 2; i++) {
        description.columns.lower[i] = (int16_t)lower[i];
        description.columns.upper[i] = (int16_t)upper[i];
    }
    description.columns.channels = channels;
    description.columns.pixels = pixels;
    memcpy(map, &description, sizeof(*map));
    return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    if (!map || !address || (uintptr_t)address % 16)
        return CUDA_ERROR_INVALID_VALUE;
    ((struct description *)map)->address = (uintptr_t)address;
    return CUDA_SUCCESS;
}
