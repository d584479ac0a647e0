/* Memory that is written in part, in rows, or given twice. */
#include <stdlib.h>
#include <string.h>

#include "testapi_extents.h"

ta_status ta_stride_visit(uint8_t *to, size_t bytes, size_t step, uint8_t value, ta_visit visit, void *context) {
    if (bytes && !to)
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < bytes; i += step) {
        to[i] = value;
        if (visit)
            visit((uint32_t)i, context);
        if (!step)
            return TA_INVALID_VALUE;
    }
    return TA_OK;
}

ta_status ta_stride(uint8_t *to, size_t bytes, size_t step, uint8_t value) {
    return ta_stride_visit(to, bytes, step, value, NULL, NULL);
}

ta_status ta_cover(uint8_t *to, size_t bytes, uint8_t value) {
    if (bytes && !to)
        return TA_INVALID_VALUE;
    memset(to, value, bytes);
    return TA_OK;
}

ta_status ta_touched(size_t count, ta_touch touch, void *context, uint64_t *sum) {
    uint8_t *block = malloc(count + 1);
    if (!block || !touch || !sum) {
        free(block);
        return TA_INVALID_VALUE;
    }
    memset(block, 1, count + 1);
    touch(block, count, context);
    *sum = 0;
    for (size_t i = 0; i < count; i++)
        *sum += block[i] * (i + 1);
    free(block);
    return TA_OK;
}

ta_status ta_rows_mix(const uint8_t *from, size_t from_pitch, uint8_t *to, size_t to_pitch, size_t width, size_t rows,
                      uint8_t key, uint64_t *sum) {
    if (!from || !to || !width || !sum)
        return TA_INVALID_VALUE;
    *sum = 0;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < width; i++) {
            *sum = *sum * 3 + to[row * to_pitch + i];
            to[row * to_pitch + i] = from[row * from_pitch + i] ^ key;
        }
    return TA_OK;
}

ta_status ta_box_number(uint16_t *to, size_t width, size_t rows, size_t pitch, size_t planes, size_t step, uint16_t add) {
    if (!to)
        return TA_INVALID_VALUE;
    for (size_t plane = 0; plane < planes; plane++)
        for (size_t row = 0; row < rows; row++)
            for (size_t i = 0; i < width; i++)
                to[plane * step + row * pitch + i] = (uint16_t)(i + 3 * row + 7 * plane + add);
    return TA_OK;
}

ta_status ta_matrix_scale(int32_t m, int32_t n, int32_t *a, int32_t lda, int32_t by) {
    if (m < 0 || n < 0 || lda < m || !a)
        return TA_INVALID_VALUE;
    for (int32_t column = 0; column < n; column++)
        for (int32_t row = 0; row < m; row++)
            a[(size_t)column * (size_t)lda + (size_t)row] *= by;
    return TA_OK;
}

ta_status ta_parts_fill(ta_device device, uint32_t count, uint32_t which, ta_part *parts) {
    if (count && !parts)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        ta_part *part = parts + i;
        if (which & 1)
            part->flag = (uint8_t)(i + 1);
        if (which & 2)
            part->number = 1000 + i;
        if (which & 4)
            part->name = i % 2 ? "odd" : "even";
        if (which & 8)
            part->device = device;
        if (which & 16)
            part->wide[1] = i;
        if (which & 32)
            part->name = NULL;
    }
    return which & 128 ? TA_INVALID_VALUE : TA_OK;
}

ta_status ta_shift_sum(const int32_t *in, int32_t *out, size_t n) {
    if (n && (!in || !out))
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)((uint32_t)in[i] + (i ? (uint32_t)out[i - 1] : 0));
    return TA_OK;
}

ta_status ta_blend(const uint8_t *a, size_t a_bytes, uint8_t *b, size_t b_bytes, uint8_t *out, size_t out_bytes,
                   int64_t apart[2]) {
    if (!a || !b || !out || !a_bytes || !b_bytes || !apart)
        return TA_INVALID_VALUE;
    apart[0] = b - a;
    apart[1] = out - a;
    for (size_t i = 0; i < out_bytes; i++) {
        out[i] = (uint8_t)(out[i] + 3 * a[i % a_bytes] + 5 * b[i % b_bytes]);
        if (i % 3 == 0)
            b[i % b_bytes] = (uint8_t)(b[i % b_bytes] + a[(i + 1) % a_bytes]);
    }
    return TA_OK;
}

ta_status ta_gather(uint32_t count, size_t bytes, const uint8_t *const *from, uint8_t *to) {
    if (!from || !to)
        return TA_INVALID_VALUE;
    for (uint32_t n = 0; n < count; n++)
        if (!from[n])
            return TA_INVALID_VALUE;
    for (size_t i = 0; i < bytes; i++) {
        uint8_t sum = i ? to[i - 1] : 0;
        for (uint32_t n = 0; n < count; n++)
            sum = (uint8_t)(sum + from[n][i]);
        to[i] = sum;
    }
    return TA_OK;
}

ta_status ta_copy_apart(const uint8_t *from, uint8_t *to, size_t bytes) {
    if (bytes && (!from || !to))
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(from[i] + 1);
    return TA_OK;
}

ta_status ta_next_letters(const char *text, char *to, size_t room) {
    size_t length = text ? strlen(text) : 0;
    if (!text || !to || length >= room)
        return TA_INVALID_VALUE;
    memmove(to, text, length + 1);
    for (size_t i = 0; i < length; i++)
        to[i]++;
    return TA_OK;
}
