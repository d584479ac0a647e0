/* Buffers and strings. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "testapi.h"

ta_status ta_summarize(const int32_t *values, size_t count, ta_summary *summary) {
    if (!values || !count || !summary)
        return TA_INVALID_VALUE;
    ta_summary s = {0, values[0], values[0]};
    for (size_t i = 0; i < count; i++) {
        s.sum += values[i];
        if (values[i] < s.least)
            s.least = values[i];
        if (values[i] > s.greatest)
            s.greatest = values[i];
    }
    *summary = s;
    return TA_OK;
}

ta_status ta_scale(double *values, size_t count, double by) {
    if (!values)
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        values[i] *= by;
    return TA_OK;
}

ta_status ta_primes(uint32_t *count, uint32_t *values) {
    static const uint32_t primes[] = {2, 3, 5, 7, 11, 13, 17, 19};
    const uint32_t n = sizeof primes / sizeof *primes;
    if (!count)
        return TA_INVALID_VALUE;
    if (values) {
        uint32_t room = *count < n ? *count : n;
        memcpy(values, primes, room * sizeof *primes);
    }
    *count = n;
    return TA_OK;
}

ta_status ta_compress(const void *from, size_t bytes, void *to, size_t capacity, size_t *written) {
    const unsigned char *in = from;
    unsigned char *out = to;
    size_t used = 0;
    if (!from || !to || !written)
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < bytes;) {
        size_t run = 1;
        while (i + run < bytes && run < 255 && in[i + run] == in[i])
            run++;
        if (used + 2 > capacity)
            return TA_OUT_OF_MEMORY;
        out[used++] = (unsigned char)run;
        out[used++] = in[i];
        i += run;
    }
    *written = used;
    return TA_OK;
}

ta_status ta_sprinkle(int32_t *values, size_t count, int32_t value) {
    if (!values)
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < count; i += 2)
        values[i] = value;
    return TA_OK;
}

ta_status ta_matrix_sum(const float *const *rows, uint32_t row_count, uint32_t columns, double *sum) {
    if (!rows || !sum)
        return TA_INVALID_VALUE;
    double total = 0;
    for (uint32_t r = 0; r < row_count; r++) {
        if (!rows[r])
            continue;
        for (uint32_t c = 0; c < columns; c++)
            total += rows[r][c];
    }
    *sum = total;
    return TA_OK;
}

ta_status ta_matrix_fill(float **rows, uint32_t row_count, uint32_t columns, float value) {
    if (!rows)
        return TA_INVALID_VALUE;
    for (uint32_t r = 0; r < row_count; r++)
        for (uint32_t c = 0; rows[r] && c < columns; c++)
            rows[r][c] = value + (float)(r * 100 + c);
    return TA_OK;
}

ta_status ta_describe(uint32_t kind, const void *at, char *text, size_t capacity) {
    if (!at || !text || !capacity)
        return TA_INVALID_VALUE;
    switch (kind) {
    case 0:
        snprintf(text, capacity, "integer %d", *(const int32_t *)at);
        return TA_OK;
    case 1:
        snprintf(text, capacity, "real %.3f", *(const double *)at);
        return TA_OK;
    case 2:
        snprintf(text, capacity, "string %s", (const char *)at);
        return TA_OK;
    default:
        return TA_INVALID_VALUE;
    }
}

ta_status ta_bump(void *blob, size_t count) {
    uint16_t *values = blob;
    if (!values)
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        values[i]++;
    return TA_OK;
}

const char *ta_error_name(ta_status status) {
    switch (status) {
    case TA_OK:
        return "TA_OK";
    case TA_INVALID_VALUE:
        return "TA_INVALID_VALUE";
    case TA_OUT_OF_MEMORY:
        return "TA_OUT_OF_MEMORY";
    default:
        return NULL;
    }
}

ta_status ta_upper(const char *text, char *to, size_t capacity) {
    if (!text || !to || strlen(text) >= capacity)
        return TA_INVALID_VALUE;
    do {
        *to++ = (char)toupper((unsigned char)*text);
    } while (*text++);
    return TA_OK;
}

ta_status ta_join(uint32_t count, const char **strings, const size_t *lengths, char *to, size_t capacity,
                  size_t *written) {
    size_t used = 0;
    if (!strings || !to)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        if (!strings[i])
            return TA_INVALID_VALUE;
        size_t n = lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
        if (used + n + 1 > capacity)
            return TA_OUT_OF_MEMORY;
        memcpy(to + used, strings[i], n);
        used += n;
    }
    to[used] = 0;
    if (written)
        *written = used;
    return TA_OK;
}

uint32_t ta_count_words(const char *const *words) {
    uint32_t n = 0;
    while (words && words[n])
        n++;
    return n;
}
