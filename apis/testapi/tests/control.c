/* Errors, requirements, resources, order within one thread.
 * control [CALLS]      so many asynchronous calls in a row (default, and at most: 20000) */
#include "check.h"
#include "testapi.h"

int main(int argc, char **argv) {
    static uint32_t trail[20000];
    uint32_t calls = argc > 1 ? (uint32_t)atoi(argv[1]) : 20000;
    uint32_t value = 0;
    uint64_t bytes = 0;
    size_t count = 0;

    CHECK_EQ(ta_fail(TA_OUT_OF_MEMORY), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_fail(12345), 12345);
    CHECK_EQ(ta_fail(TA_OK), TA_OK);
    CHECK_EQ(ta_pick(5, &value), TA_OK);
    CHECK_EQ(value, 25);
    CHECK_EQ(ta_pick(16, &value), TA_INVALID_VALUE);
    CHECK_EQ(ta_pick(0xffffffff, &value), TA_INVALID_VALUE);
    CHECK_EQ(value, 25);
    CHECK_EQ(ta_pick(5, NULL), TA_INVALID_VALUE);

    CHECK_EQ(ta_reserve(1000), TA_OK);
    CHECK_EQ(ta_reserve(0), TA_INVALID_VALUE);
    CHECK_EQ(ta_reserved(&bytes), TA_OK);
    CHECK_EQ(bytes, 1000);
    CHECK_EQ(ta_unreserve(400), TA_OK);
    CHECK_EQ(ta_unreserve(601), TA_INVALID_VALUE);
    CHECK_EQ(ta_unreserve(600), TA_OK);
    CHECK_EQ(ta_work(1500), TA_OK);
    CHECK(ta_last_work() >= 1500000);

    if (calls > 20000)
        return 2;
    for (uint32_t i = 0; i < calls; i++)
        ta_trail_async(i);
    CHECK_EQ(ta_trail_read(trail, 20000, &count), TA_OK);
    CHECK_EQ(count, calls);
    int ordered = 1;
    for (uint32_t i = 0; i < count; i++)
        ordered &= trail[i] == i;
    CHECK(ordered);
    for (uint64_t i = 0; i < calls / 20; i++) {
        ta_mark_async(i * 3);
        if (ta_mark() != i * 3)
            CHECK(!"a synchronous call sees the asynchronous one before it");
    }
    CHECK_EQ(ta_mark(), (calls / 20 - 1) * 3);
    return check_done();
}
