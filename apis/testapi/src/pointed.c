/* Pointers into arguments, constants among pointers, arrays of pointers for callbacks. */
#include "testapi_pointed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ta_status ta_number_read(const char *text, uint64_t *number, const char **end) {
    const char *at = text;
    if (!text || !number)
        return TA_INVALID_VALUE;
    for (*number = 0; *at >= '0' && *at <= '9'; at++)
        *number = *number * 10 + (uint64_t)(*at - '0');
    if (end && *text)
        *end = at == text ? NULL : at;
    return TA_OK;
}

const void *ta_byte_find(const void *from, size_t bytes, int value) {
    return from && bytes ? memchr(from, value, bytes) : NULL;
}

ta_status ta_word_skip(const char *text, int bytes, const char **rest) {
    if (!text || !rest)
        return TA_INVALID_VALUE;
    const char *at = text, *end = text + (bytes < 0 ? strlen(text) : strnlen(text, (size_t)bytes));
    while (at < end && *at != ' ')
        at++;
    *rest = at;
    return TA_OK;
}

int64_t ta_each_known(uint32_t count, ta_visit visit, void *context) {
    if (visit == TA_VISIT_NONE)
        return 0;
    if (visit == TA_VISIT_SUM)
        return (int64_t)count * ((int64_t)count - 1) / 2;
    return ta_each(count, visit, context);
}

static char kept[256];

ta_status ta_text_keep(const char *text, ta_text_end end) {
    if (!text)
        return TA_INVALID_VALUE;
    snprintf(kept, sizeof kept, "%s", end == TA_TEXT_COPIED ? text : "the caller's");
    return TA_OK;
}

const char *ta_text_kept(void) {
    return kept;
}

int32_t ta_rows_visit(uint32_t rows, int32_t columns, ta_device device, ta_row row, void *context) {
    enum { MOST = 40 };
    char values[MOST][32], names[MOST][32], *value_list[MOST], *name_list[MOST];
    ta_device devices[] = {device, NULL, device};
    if (!row || columns < 0 || columns > MOST)
        return -1;
    for (uint32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < columns; c++) {
            snprintf(values[c], sizeof values[c], "%u.%d", r, c);
            snprintf(names[c], sizeof names[c], "column %d", c);
            value_list[c] = (r + (uint32_t)c) % 3 == 2 ? NULL : values[c];
            name_list[c] = names[c];
        }
        int32_t answer = row(context, columns, value_list, r % 5 == 4 ? NULL : name_list, r == 1 ? 0 : 3, r == 1 ? NULL : devices);
        if (answer)
            return answer;
    }
    return 0;
}

static char *letters(uint32_t count) {
    char *text = malloc((size_t)count + 1);
    for (uint32_t i = 0; text && i < count; i++)
        text[i] = (char)('a' + i % 26);
    if (text)
        text[count] = 0;
    return text;
}

char *ta_text_export(uint32_t count) {
    return count ? letters(count) : NULL;
}

ta_status ta_list_export(uint32_t count, char ***names, uint32_t *written) {
    if (!names || !written || count == 7)
        return TA_INVALID_VALUE;
    *written = count;
    *names = malloc(count * sizeof **names + 1);
    for (uint32_t i = 0; i < count; i++)
        (*names)[i] = i % 4 == 3 ? NULL : letters(i);
    return TA_OK;
}
