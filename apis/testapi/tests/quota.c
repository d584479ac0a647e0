/* quota BYTES: run under a limit of so many bytes of device_memory, which is exact. Not run natively. */
#include "check.h"
#include "testapi.h"

#define PIECE 1000

int main(int argc, char **argv) {
    size_t limit = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, pieces = limit / PIECE, rest = limit % PIECE;
    ta_device device = NULL;
    ta_buffer *buffers = calloc(pieces + 1, sizeof *buffers), extra = NULL;
    if (!buffers || pieces < 3 || rest < 2)
        return 2;
    CHECK_EQ(ta_device_open("limited", &device), TA_OK);
    for (int round = 0; round < 3; round++) {
        size_t made = 0;
        while (made <= pieces && ta_buffer_create(device, PIECE, &buffers[made]) == TA_OK)
            made++;
        CHECK_EQ(made - pieces, 0);
        CHECK_EQ(ta_buffer_create(device, rest + 1, &extra), TA_OUT_OF_MEMORY);
        CHECK_EQ(ta_buffer_create(device, rest, &extra), TA_OK);
        CHECK_EQ(ta_reserve(1), TA_OUT_OF_MEMORY);
        CHECK_EQ(ta_buffer_destroy(extra), TA_OK);
        CHECK_EQ(ta_reserve(rest), TA_OK);
        CHECK_EQ(ta_buffer_create(device, 1, &extra), TA_OUT_OF_MEMORY);
        CHECK_EQ(ta_unreserve(1), TA_OK);
        CHECK_EQ(ta_buffer_create(device, 1, &extra), TA_OK);
        CHECK_EQ(ta_buffer_destroy(extra), TA_OK);
        CHECK_EQ(ta_unreserve(rest - 1), TA_OK);
        /* A call that the library itself refuses is not charged. */
        for (int i = 0; i < 100; i++)
            ta_buffer_create(NULL, rest, &extra);
        CHECK_EQ(ta_buffer_create(device, rest, &extra), TA_OK);
        CHECK_EQ(ta_buffer_destroy(extra), TA_OK);
        CHECK_EQ(ta_buffer_create(device, SIZE_MAX, &extra), TA_OUT_OF_MEMORY);
        for (size_t i = 0; i < made; i++)
            if (ta_buffer_destroy(buffers[i]) != TA_OK)
                CHECK(!"a buffer is destroyed");
    }
    CHECK_EQ(ta_buffer_create(device, limit, &extra), TA_OK);
    CHECK_EQ(ta_buffer_destroy(extra), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
    return check_done();
}
