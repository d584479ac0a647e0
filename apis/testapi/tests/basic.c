/* The thin path: calls without data, a string, handles, buffers, an asynchronous call. */
#include "check.h"
#include "testapi.h"

int main(void) {
    CHECK_EQ(ta_noop(), TA_OK);
    CHECK_EQ(ta_add(40, 2), 42);
    CHECK_EQ(ta_add(INT32_MAX, 1), INT32_MIN);
    CHECK_EQ(ta_add_three(INT32_MAX, 1, 2), INT32_MIN + 2);
    CHECK(strcmp(ta_version(), "testapi 1.0") == 0);
    for (int i = 0; i < 1000; i++)
        ta_noop_async();
    CHECK_EQ(ta_noop_count(), 1000);

    ta_device device = NULL;
    CHECK_EQ(ta_device_open(NULL, &device), TA_INVALID_VALUE);
    CHECK_EQ(ta_device_open("zero", NULL), TA_INVALID_VALUE);
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    CHECK(device != NULL);

    static unsigned char data[300000], back[300000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + i / 251);
    ta_buffer buffer = NULL;
    CHECK_EQ(ta_buffer_create(NULL, 10, &buffer), TA_INVALID_DEVICE);
    CHECK_EQ(ta_buffer_create(device, 0, &buffer), TA_INVALID_VALUE);
    CHECK(buffer == NULL);
    CHECK_EQ(ta_buffer_create(device, sizeof data, &buffer), TA_OK);
    size_t sizes[] = {0, 1, 8, 100, 256, 257, 4096, 4097, 65536, sizeof data};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(back, 0xee, sizeof back);
        CHECK_EQ(ta_buffer_write(buffer, 0, sizes[i], data), TA_OK);
        CHECK_EQ(ta_buffer_read(buffer, 0, sizes[i], back), TA_OK);
        CHECK_EQ(memcmp(data, back, sizes[i]), 0);
        CHECK(sizes[i] == sizeof back || back[sizes[i]] == 0xee);
    }
    CHECK_EQ(ta_buffer_read(buffer, 1, sizeof data, back), TA_INVALID_VALUE);
    CHECK_EQ(ta_buffer_read(buffer, 0, 8, NULL), TA_INVALID_VALUE);
    CHECK_EQ(ta_buffer_fill(buffer, 0x5a), TA_OK);
    CHECK_EQ(ta_buffer_read(buffer, 0, sizeof back, back), TA_OK);
    CHECK(back[0] == 0x5a && back[sizeof back - 1] == 0x5a);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_INVALID_BUFFER);
    CHECK_EQ(ta_buffer_read(buffer, 0, 8, back), TA_INVALID_BUFFER);
    CHECK_EQ(ta_device_close(device), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_INVALID_DEVICE);
    CHECK_EQ(ta_device_close((ta_device)(uintptr_t)0x1234), TA_INVALID_DEVICE);
    return check_done();
}
