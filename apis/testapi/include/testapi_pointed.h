/*
 * Pointers that lead into what the caller has passed, pointers that are constants, and arrays of pointers for callbacks.
 */
#ifndef TESTAPI_POINTED_H
#define TESTAPI_POINTED_H

#include "testapi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a decimal number. *end is where it ends, or NULL where there is none; it is left alone where the text is empty. */
ta_status ta_number_read(const char *text, uint64_t *number, const char **end);
/* The first such byte, or NULL. */
const void *ta_byte_find(const void *from, size_t bytes, int value);
/* Behind the first word of a text of so many bytes, fewer than 0: that ends with a zero. */
ta_status ta_word_skip(const char *text, int bytes, const char **rest);

/* Called instead of nothing, and instead of a function that adds the numbers up. */
#define TA_VISIT_NONE ((ta_visit)-2)
#define TA_VISIT_SUM ((ta_visit)-1)
/* As ta_each. The two constants are known, NULL fails. */
int64_t ta_each_known(uint32_t count, ta_visit visit, void *context);
typedef void (*ta_text_end)(void *text);
#define TA_TEXT_SHARED ((ta_text_end)0)
#define TA_TEXT_COPIED ((ta_text_end)-1)
/* Keeps a text: its own copy of it, or nothing where it would have to rely on the caller's. */
ta_status ta_text_keep(const char *text, ta_text_end end);
const char *ta_text_kept(void);

/* One row of a table, and devices that belong to it. */
typedef int32_t (*ta_row)(void *context, int32_t columns, char **values, char **names, size_t n, const ta_device *devices);
/* Calls `row` for each row, until it answers something else than 0, which is the answer. Each third value is NULL, and the
   second row has no devices. */
int32_t ta_rows_visit(uint32_t rows, int32_t columns, ta_device device, ta_row row, void *context);

/* A text of so many letters, which the caller frees with `free`; NULL for none. */
char *ta_text_export(uint32_t letters);
/* So many texts, each and the array of them for `free`. Fails for 7, and leaves `names` alone. */
ta_status ta_list_export(uint32_t count, char ***names, uint32_t *written);

#ifdef __cplusplus
}
#endif

#endif
