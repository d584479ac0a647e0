/* Pointers into arguments, constants among pointers, arrays of pointers for callbacks. */
#include "check.h"
#include "testapi_pointed.h"

static void into_arguments(void) {
    static const char left[] = "left alone";
    const char *texts[] = {"", "7", "1234 and more", "none", "18446744073709551615"};
    for (size_t n = 0; n < sizeof texts / sizeof *texts; n++) {
        uint64_t number = 1;
        const char *end = left;
        CHECK_EQ(ta_number_read(texts[n], &number, &end), TA_OK);
        printf("ok   %llu\n", (unsigned long long)number);
        CHECK_EQ(end == left ? -2 : end ? end - texts[n] : -1, n == 0 ? -2 : n == 3 ? -1 : (long long)strspn(texts[n], "0123456789"));
        CHECK_EQ(ta_number_read(texts[n], &number, NULL), TA_OK);
    }
    const char *end = left;
    uint64_t number;
    CHECK_EQ(ta_number_read(NULL, &number, &end), TA_INVALID_VALUE);
    CHECK(end == left);
    for (size_t bytes = 1; bytes < (size_t)2 << 20; bytes = bytes * 5 + 3) {
        unsigned char *memory = calloc(bytes, 1);
        for (size_t at = 0; at < bytes; at = at * 3 + 1) {
            memory[at] = 9;
            CHECK_EQ((const unsigned char *)ta_byte_find(memory, bytes, 9) - memory, at);
            CHECK(ta_byte_find(memory, at, 9) == NULL);
            memory[at] = 0;
        }
        CHECK(ta_byte_find(memory, bytes, 9) == NULL);
        free(memory);
    }
    CHECK(ta_byte_find(NULL, 0, 9) == NULL);
    const char *words = "some words", *rest = NULL;
    CHECK_EQ(ta_word_skip(words, -1, &rest), TA_OK);
    CHECK_EQ(rest - words, 4);
    for (int bytes = 0; bytes < 7; bytes++) {
        CHECK_EQ(ta_word_skip(words, bytes, &rest), TA_OK);
        CHECK_EQ(rest - words, bytes < 4 ? bytes : 4);
    }
    CHECK_EQ(ta_word_skip(words + 5, -1, &rest), TA_OK);
    CHECK(*rest == 0 && rest == words + 10);
}

static int32_t ten_times(uint32_t index, void *context) {
    return (int32_t)index * *(int *)context;
}

static void constants(void) {
    int ten = 10;
    CHECK_EQ(ta_each_known(5, ten_times, &ten), 100);
    CHECK_EQ(ta_each_known(5, TA_VISIT_SUM, &ten), 10);
    CHECK_EQ(ta_each_known(5, TA_VISIT_NONE, NULL), 0);
    CHECK_EQ(ta_each_known(5, NULL, NULL), -1);
    char text[] = "copied";
    CHECK_EQ(ta_text_keep(text, TA_TEXT_COPIED), TA_OK);
    text[0] = 'X';
    CHECK(strcmp(ta_text_kept(), "copied") == 0);
    CHECK_EQ(ta_text_keep(text, TA_TEXT_SHARED), TA_OK);
    CHECK(strcmp(ta_text_kept(), "the caller's") == 0);
}

struct seen {
    uint32_t rows, last;
    ta_device device;
};

static int32_t show(void *context, int32_t columns, char **values, char **names, size_t n, const ta_device *devices) {
    struct seen *seen = context;
    printf("ok   row %u:", seen->rows);
    for (int32_t c = 0; c < columns; c++)
        printf(" %s=%s", names ? names[c] : "?", values[c] ? values[c] : "NULL");
    puts("");
    CHECK_EQ(n, seen->rows == 1 ? 0 : 3);
    CHECK(n == 0 ? !devices : devices[0] == seen->device && !devices[1] && devices[2] == seen->device);
    for (int32_t c = 0; c < columns && seen->rows % 2; c++)
        if (values[c])
            values[c][0] = '!'; /* the application's copy */
    return ++seen->rows == seen->last ? -(int32_t)seen->last : 0;
}

static void rows(void) {
    ta_device device = NULL;
    uint32_t count = 0;
    CHECK_EQ(ta_device_list(1, &device, &count), TA_OK);
    for (int32_t columns = 0; columns < 40; columns = columns * 2 + 1) {
        struct seen seen = {0, 0, device};
        CHECK_EQ(ta_rows_visit(7, columns, device, show, &seen), 0);
        CHECK_EQ(seen.rows, 7);
        seen = (struct seen){0, 3, device};
        CHECK_EQ(ta_rows_visit(7, columns, device, show, &seen), -3);
    }
    CHECK_EQ(ta_rows_visit(7, 1, device, NULL, NULL), -1);
}

/* Memory of the C library: it is this program's, which may also resize it. */
static void exported(void) {
    for (uint32_t n = 0; n < 300000; n = n * 7 + 1) {
        char *text = ta_text_export(n);
        CHECK_EQ(text ? strlen(text) : 0, n);
        text = realloc(text, n + 100);
        memset(text + n, '!', 99);
        CHECK(n == 0 || text[n - 1] == 'a' + (char)((n - 1) % 26));
        free(text);
    }
    char **names = NULL, *left = "left";
    uint32_t written = 0;
    for (uint32_t count = 0; count < 70; count = count * 2 + 1) {
        names = &left;
        CHECK_EQ(ta_list_export(count, &names, &written), count == 7 ? TA_INVALID_VALUE : TA_OK);
        if (count == 7) {
            CHECK(names == &left);
            continue;
        }
        CHECK_EQ(written, count);
        for (uint32_t i = 0; i < written; i++) {
            CHECK(i % 4 == 3 ? !names[i] : strlen(names[i]) == i);
            free(names[i]);
        }
        free(names);
    }
}

int main(void) {
    into_arguments();
    exported();
    constants();
    rows();
    return check_done();
}
