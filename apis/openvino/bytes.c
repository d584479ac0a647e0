/* How much memory a tensor takes. */
#include <aviary.h>

#include "openvino_types.h"

/* Bits of an element; 0: the library itself says how elements lie, or they are no plain data. */
static uint64_t bits_of(uint32_t type) {
    switch (type) {
    case U1:
        return 1;
    case U2:
        return 2;
    case I4:
    case U4:
    case NF4:
    case F4E2M1:
        return 4;
    case OV_BOOLEAN:
    case I8:
    case U8:
    case F8E4M3:
    case F8E5M3:
    case F8E8M0:
        return 8;
    case BF16:
    case F16:
    case I16:
    case U16:
        return 16;
    case F32:
    case I32:
    case U32:
        return 32;
    case F64:
    case I64:
    case U64:
        return 64;
    case U3:
        return 3;
    case U6:
        return 6;
    default:
        return 0;
    }
}

/* As many as there can be where nobody could have them. */
uint64_t shape_bytes(uint32_t type, int64_t rank, const int64_t *dims) {
    uint64_t bits = bits_of(type);
    for (int64_t i = 0; dims && i < rank; i++)
        if (dims[i] < 0 || __builtin_mul_overflow(bits, (uint64_t)dims[i], &bits))
            return UINT64_MAX / 2;
    /* Elements of three and six bits lie in groups of eight and four, of three bytes each. */
    if (type == U3 || type == U6)
        return (bits + 23) / 24 * 3;
    return bits / 8 + (bits % 8 != 0);
}
