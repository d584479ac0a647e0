/* Buffers whose sizes come from other arguments, strings, arrays of strings. */
#include "check.h"
#include "testapi.h"

static void buffers(void) {
    int32_t values[] = {5, -9, 40, 2};
    ta_summary summary = {1, 2, 3};
    CHECK_EQ(ta_summarize(values, 4, &summary), TA_OK);
    CHECK(summary.sum == 38 && summary.least == -9 && summary.greatest == 40);
    summary.sum = 77;
    CHECK_EQ(ta_summarize(values, 0, &summary), TA_INVALID_VALUE);
    CHECK_EQ(summary.sum, 77);
    CHECK_EQ(ta_summarize(NULL, 4, &summary), TA_INVALID_VALUE);

    static double many[100000];
    for (int i = 0; i < 100000; i++)
        many[i] = i;
    CHECK_EQ(ta_scale(many, 100000, 2), TA_OK);
    CHECK(many[0] == 0 && many[1] == 2 && many[99999] == 199998);
    CHECK_EQ(ta_scale(many, 3, 0.5), TA_OK);
    CHECK(many[2] == 2 && many[3] == 6);
    CHECK_EQ(ta_scale(NULL, 3, 0.5), TA_INVALID_VALUE);

    uint32_t count = 0, primes[10] = {0};
    CHECK_EQ(ta_primes(&count, NULL), TA_OK);
    CHECK_EQ(count, 8);
    count = 3;
    primes[3] = 99;
    CHECK_EQ(ta_primes(&count, primes), TA_OK);
    CHECK_EQ(count, 8);
    CHECK(primes[0] == 2 && primes[2] == 5 && primes[3] == 99);
    count = 10;
    primes[9] = 99;
    CHECK_EQ(ta_primes(&count, primes), TA_OK);
    CHECK(primes[7] == 19 && primes[9] == 99);
    CHECK_EQ(ta_primes(NULL, primes), TA_INVALID_VALUE);

    unsigned char raw[10000], packed[20000];
    memset(raw, 7, sizeof raw);
    raw[5000] = 8;
    memset(packed, 0xcc, sizeof packed);
    size_t written = 0;
    CHECK_EQ(ta_compress(raw, sizeof raw, packed, sizeof packed, &written), TA_OK);
    CHECK_EQ(written, 82);
    CHECK(packed[0] == 255 && packed[1] == 7);
    CHECK_EQ(packed[written], 0xcc);
    CHECK_EQ(ta_compress(raw, sizeof raw, packed, 10, &written), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_compress(raw, sizeof raw, packed, sizeof packed, NULL), TA_INVALID_VALUE);

    int32_t holes[] = {1, 2, 3, 4, 5};
    CHECK_EQ(ta_sprinkle(holes, 5, -1), TA_OK);
    CHECK(holes[0] == -1 && holes[1] == 2 && holes[2] == -1 && holes[3] == 4 && holes[4] == -1);
    uint16_t blob[] = {1, 0xffff, 41};
    CHECK_EQ(ta_bump(blob, 3), TA_OK);
    CHECK(blob[0] == 2 && blob[1] == 0 && blob[2] == 42);
}

static void nested(void) {
    float first[] = {1, 2, 3}, third[] = {10, 20, 30};
    const float *rows[] = {first, NULL, third};
    double sum = 0;
    CHECK_EQ(ta_matrix_sum(rows, 3, 3, &sum), TA_OK);
    CHECK(sum == 66);
    CHECK_EQ(ta_matrix_sum(rows, 1, 2, &sum), TA_OK);
    CHECK(sum == 3);
    CHECK_EQ(ta_matrix_sum(NULL, 1, 2, &sum), TA_INVALID_VALUE);
    float *out[] = {first, NULL, third};
    CHECK_EQ(ta_matrix_fill(out, 3, 2, 0.5f), TA_OK);
    CHECK(first[0] == 0.5f && first[1] == 1.5f && first[2] == 3);
    CHECK(third[0] == 200.5f && third[1] == 201.5f && third[2] == 30);
}

static void strings(void) {
    char text[64] = "";
    int32_t integer = -12;
    double real = 2.5;
    CHECK_EQ(ta_describe(0, &integer, text, sizeof text), TA_OK);
    CHECK(strcmp(text, "integer -12") == 0);
    CHECK_EQ(ta_describe(1, &real, text, sizeof text), TA_OK);
    CHECK(strcmp(text, "real 2.500") == 0);
    CHECK_EQ(ta_describe(2, "abc", text, sizeof text), TA_OK);
    CHECK(strcmp(text, "string abc") == 0);
    CHECK_EQ(ta_describe(3, "abc", text, sizeof text), TA_INVALID_VALUE);
    CHECK_EQ(ta_describe(0, NULL, text, sizeof text), TA_INVALID_VALUE);

    CHECK(strcmp(ta_error_name(TA_INVALID_VALUE), "TA_INVALID_VALUE") == 0);
    CHECK(ta_error_name(TA_OK) == ta_error_name(TA_OK));
    CHECK(ta_error_name(12345) == NULL);
    memset(text, '#', sizeof text);
    CHECK_EQ(ta_upper("shout, 123", text, sizeof text), TA_OK);
    CHECK(strcmp(text, "SHOUT, 123") == 0);
    CHECK_EQ(text[11], '#');
    CHECK_EQ(ta_upper("", text, sizeof text), TA_OK);
    CHECK_EQ(text[0], 0);
    CHECK_EQ(ta_upper(NULL, text, sizeof text), TA_INVALID_VALUE);
    CHECK_EQ(ta_upper("too long", text, 3), TA_INVALID_VALUE);

    const char *parts[] = {"one", "twoXX", "three"};
    size_t lengths[] = {0, 3, 5}, written = 0;
    CHECK_EQ(ta_join(3, parts, NULL, text, sizeof text, &written), TA_OK);
    CHECK(strcmp(text, "onetwoXXthree") == 0 && written == 13);
    CHECK_EQ(ta_join(3, parts, lengths, text, sizeof text, &written), TA_OK);
    CHECK(strcmp(text, "onetwothree") == 0 && written == 11);
    CHECK_EQ(ta_join(3, parts, lengths, text, sizeof text, NULL), TA_OK);
    parts[1] = NULL;
    CHECK_EQ(ta_join(3, parts, NULL, text, sizeof text, &written), TA_INVALID_VALUE);
    CHECK_EQ(ta_join(0, parts, NULL, text, sizeof text, &written), TA_OK);
    CHECK_EQ(written, 0);

    const char *words[] = {"a", "bc", "def", NULL};
    CHECK_EQ(ta_count_words(words), 3);
    CHECK_EQ(ta_count_words(words + 3), 0);
    CHECK_EQ(ta_count_words(NULL), 0);
}

int main(void) {
    buffers();
    nested();
    strings();
    return check_done();
}
