/* Run with a small AVIARY_ARENA: what does not fit is refused with an error code, and the rest goes on. */
#include "check.h"
#include "testapi.h"

#define BYTES ((size_t)64 << 20)

int main(void) {
    unsigned char *data = calloc(1, BYTES), back[64];
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    if (!data)
        return 2;
    data[5] = 55;
    CHECK_EQ(ta_device_open("scarce", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, BYTES, &buffer), TA_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(ta_buffer_write(buffer, 0, BYTES, data) != TA_OK, 1);
        CHECK_EQ(ta_add(i, 1), i + 1);
        CHECK_EQ(ta_buffer_write(buffer, 0, 1 << 20, data), TA_OK);
        CHECK_EQ(ta_buffer_read(buffer, 0, 64, back), TA_OK);
        CHECK_EQ(back[5], 55);
        CHECK(ta_shared_alloc(BYTES) == NULL);
    }
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
    return check_done();
}
