/*
 * Memory that calls write in part, that consists of rows, or that is the same for several arguments.
 */
#ifndef TESTAPI_EXTENTS_H
#define TESTAPI_EXTENTS_H

#include "testapi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every step-th byte of `to` becomes `value`, the first one first; with a step of 0 only the first, and the call fails. */
ta_status ta_stride(uint8_t *to, size_t bytes, size_t step, uint8_t value);
/* The same, and after each byte `visit` is called with its index. */
ta_status ta_stride_visit(uint8_t *to, size_t bytes, size_t step, uint8_t value, ta_visit visit, void *context);
/* All of `to` becomes `value`. */
ta_status ta_cover(uint8_t *to, size_t bytes, uint8_t value);
typedef void (*ta_touch)(uint8_t *bytes, size_t count, void *context);
/* Hands `touch` a block of `count` bytes, all 1, and sums up what is in it afterwards, each times its place. */
ta_status ta_touched(size_t count, ta_touch touch, void *context, uint64_t *sum);

/* Rows of `width` bytes: to[row][i] = from[row][i] ^ key, and the sum of what was in `to`. A width of 0 fails. */
ta_status ta_rows_mix(const uint8_t *from, size_t from_pitch, uint8_t *to, size_t to_pitch, size_t width, size_t rows,
                      uint8_t key, uint64_t *sum);
/* Rows of `width` numbers in planes: each number of `to` becomes its place (row and plane counted) plus `add`. */
ta_status ta_box_number(uint16_t *to, size_t width, size_t rows, size_t pitch, size_t planes, size_t step, uint16_t add);
/* A matrix of m rows and n columns, whose columns begin `lda` numbers apart: each number times `by`. */
ta_status ta_matrix_scale(int32_t m, int32_t n, int32_t *a, int32_t lda, int32_t by);

/* Some members of structures are written, by the bits of `which` (see the source); the others are left alone. Fails after
   that where bit 7 is set. */
typedef struct ta_part {
    uint8_t flag;
    uint32_t number;
    const char *name;
    ta_device device;
    uint64_t wide[3];
} ta_part;
ta_status ta_parts_fill(ta_device device, uint32_t count, uint32_t which, ta_part *parts);

/* out[i] = in[i] + out[i - 1], from the first on: in place, and on memory that is shifted, other sums. */
ta_status ta_shift_sum(const int32_t *in, int32_t *out, size_t n);
/* Mixes three pieces of memory, byte by byte from the first on; `apart` tells how far b and out lie behind a. */
ta_status ta_blend(const uint8_t *a, size_t a_bytes, uint8_t *b, size_t b_bytes, uint8_t *out, size_t out_bytes,
                   int64_t apart[2]);
/* to[i] is the sum of all from[n][i], plus to[i - 1]. */
ta_status ta_gather(uint32_t count, size_t bytes, const uint8_t *const *from, uint8_t *to);
/* to[i] = from[i] + 1: they lie apart. */
ta_status ta_copy_apart(const uint8_t *from, uint8_t *to, size_t bytes);
/* Like strcpy, and each letter becomes the next one; in place, too. */
ta_status ta_next_letters(const char *text, char *to, size_t room);

#ifdef __cplusplus
}
#endif

#endif
