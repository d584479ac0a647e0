/* Numbers of every width and structs by value. */
#include "check.h"
#include "testapi.h"

int main(void) {
    CHECK(ta_scalars(-1, 200, -300, 60000, -70000, 4000000000u, -5000000000ll, 6000000000ull, 1.5f, 2.25, 1, 'A') ==
          -1 + 400.0 - 900 + 240000.0 - 350000.0 + 24000000000.0 - 35000000000.0 + 48000000000.0 + 13.5 + 22.5 + 11 +
              12.0 * 'A');
    CHECK_EQ(ta_negate8(-128), -128);
    CHECK_EQ(ta_negate8(5), -5);
    CHECK_EQ(ta_increment16(65535), 0);
    CHECK_EQ(ta_negate64(INT64_MIN), INT64_MIN);
    CHECK_EQ(ta_negate64(INT64_MAX), -INT64_MAX);
    CHECK(ta_half_float(3.0f) == 1.5f);
    CHECK(ta_half(-3.0) == -1.5);
    CHECK_EQ(ta_not(0), 1);
    CHECK_EQ(ta_not(1), 0);
    CHECK_EQ(ta_color_next(TA_BLUE), TA_RED);

    ta_point p = ta_point_add((ta_point){1.5, -2.5, 7}, (ta_point){0.25, 1e300, -3});
    CHECK(p.x == 1.75 && p.y == 1e300 - 2.5 && p.tag == 697);
    ta_small s = ta_small_swap((ta_small){-100, 12});
    CHECK(s.a == 12 && s.b == -100);
    ta_pair m = ta_pair_multiply((ta_pair){1, 2}, (ta_pair){3, -4});
    CHECK(m.re == 11 && m.im == 2);
    ta_quad q = ta_quad_reverse((ta_quad){{1, 2, 3}, 4.5f});
    CHECK(q.low[0] == 3 && q.low[1] == 2 && q.low[2] == 1 && q.high == -4.5f);
    CHECK_EQ(ta_value_bits((ta_value){.real = 1.0}), 0x3ff0000000000000);
    CHECK_EQ(ta_value_bits((ta_value){.bytes = {1, 2, 3}}), 0x030201);

    for (int32_t i = 0; i < 100; i++)
        ta_level_set(i);
    CHECK_EQ(ta_level_get(), 99);
    return check_done();
}
