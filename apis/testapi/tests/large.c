/* Buffers far larger than any ring, also nested, and more at once than fits into caches. */
#include <pthread.h>

#include "check.h"
#include "testapi.h"

#define BYTES ((size_t)200 << 20)

static void fill(unsigned char *p, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)((i >> 3) * 2654435761u + i + seed);
}

static void round_trip(void) {
    unsigned char *data = malloc(BYTES), *back = calloc(1, BYTES);
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    if (!data || !back)
        exit(2);
    fill(data, BYTES, 1);
    CHECK_EQ(ta_device_open("large", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, BYTES, &buffer), TA_OK);
    CHECK_EQ(ta_buffer_write(buffer, 0, BYTES, data), TA_OK);
    CHECK_EQ(ta_buffer_read(buffer, 0, BYTES, back), TA_OK);
    CHECK_EQ(memcmp(data, back, BYTES), 0);
    /* An unaligned piece in the middle. */
    memset(back, 0, BYTES);
    CHECK_EQ(ta_buffer_read(buffer, 12345, 67654321, back + 3), TA_OK);
    CHECK_EQ(memcmp(data + 12345, back + 3, 67654321), 0);
    CHECK_EQ(back[2] | back[3 + 67654321], 0);
    unsigned char *mapped = ta_buffer_map(buffer, TA_MAP_READ, 0, BYTES, NULL);
    CHECK(mapped && memcmp(mapped, data, BYTES) == 0);
    CHECK_EQ(ta_buffer_unmap(buffer, mapped), TA_OK);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
    free(data);
    free(back);
}

static void many_strings(void) {
    enum { COUNT = 20000 };
    static const char *words[COUNT + 1];
    static char text[COUNT * 8 + 1];
    size_t written = 0;
    for (int i = 0; i < COUNT; i++)
        words[i] = i % 2 ? "odd" : "even";
    CHECK_EQ(ta_count_words(words), COUNT);
    CHECK_EQ(ta_join(COUNT, words, NULL, text, sizeof text, &written), TA_OK);
    CHECK_EQ(written, COUNT / 2 * 7);
    CHECK(memcmp(text + written - 7, "evenodd", 8) == 0);
}

/* Asynchronous writes of blocks: the guest may reuse its memory only after the server has read it. */
static void asynchronous(void) {
    enum { COUNT = 300 };
    static unsigned char results[COUNT][50000];
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    int wrong = 0;
    CHECK_EQ(ta_device_open("large", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, sizeof results[0], &buffer), TA_OK);
    ta_stream stream = ta_stream_create(device, NULL);
    for (int i = 0; i < COUNT; i++) {
        ta_buffer_fill(buffer, (uint8_t)i);
        ta_read_async(buffer, 0, sizeof results[i], results[i], stream);
    }
    CHECK_EQ(ta_stream_synchronize(stream), TA_OK);
    for (int i = 0; i < COUNT; i++)
        wrong += results[i][0] != (uint8_t)i || results[i][49999] != (uint8_t)i;
    CHECK_EQ(wrong, 0);
    CHECK_EQ(ta_stream_destroy(stream), TA_OK);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
}

int main(void) {
    round_trip();
    many_strings();
    asynchronous();
    return check_done();
}
