/* Values that calling conventions treat each in its own way. */
#include <complex.h>

#include "check.h"
#include "testapi_passed.h"

static ta_number answer(ta_bits bits, long double wide, void *context) {
    CHECK(wide == 1.0L / 3);
    CHECK_EQ(bits.day, 9);
    CHECK_EQ(bits.month, 12);
    CHECK(bits.at == -0.5);
    *(int *)context += 1;
    return (ta_number){.d = 2.75};
}

static int plain(int value, void *context) {
    return value + *(int *)context;
}

int main(void) {
    ta_bits bits = ta_bits_next((ta_bits){30, 10, 1.5, 1});
    CHECK(bits.day == 31 && bits.month == 12 && bits.at == 3.0 && bits.sign == -1);
    CHECK_EQ(ta_bits_sum((ta_bits){7, 3, 0, -2}), -19693);
    ta_packed packed = ta_packed_double((ta_packed){'a', -21, 2.5}, 2, 7);
    CHECK(packed.c == 'c' && packed.i == -35 && packed.d == 5.0);
    ta_aligned aligned = ta_aligned_double(1, (ta_aligned){'x', 4.5});
    CHECK(aligned.c == 'y' && aligned.d == 9.0);
    CHECK(ta_number_double((ta_number){.d = 3.25}).d == 6.5);
    CHECK(ta_number_half((ta_number){.d = 3.25}) == 1.625);
    ta_tagged tagged = {{1.5f}, 2.5f, {{{{-9}}}}};
    tagged = ta_tagged_double(tagged);
    CHECK(tagged.u.f == 3.0f && tagged.g == 7.5f && tagged.a.b.c.d.deep == -36);
    CHECK_EQ(ta_nothing_add((ta_nothing){}, 41), 42);
    CHECK(ta_wide_double((ta_wide){1.1L}).x == 2.2L);
    CHECK(ta_long_double_third(1.0L) == 1.0L / 3);
    CHECK(ta_int128_triple(4, ((__int128)7 << 90) + 5) == ((__int128)21 << 90) + 19);
    CHECK(ta_int128_triple(-1, -((__int128)1 << 100)) == -((__int128)3 << 100) - 1);
    ta_vector vector = ta_vector_double((ta_vector){1, -2, 3.5f, 0});
    CHECK(vector[0] == 2 && vector[1] == -4 && vector[2] == 7 && vector[3] == 0);
    CHECK(ta_complex_turn(3.0 + 4.0 * I) == -4.0 + 3.0 * I);
    CHECK(ta_complex_turn_float(3.0f + 4.0f * I) == -4.0f + 3.0f * I);
    CHECK_EQ(ta_renamed(40), 42);
    int called = 0;
    CHECK(ta_call_with_values(answer, &called, (ta_bits){9, 12, -0.5, 0}) == 2.75);
    CHECK_EQ(called, 1);
    int more = 300;
    CHECK_EQ(ta_call_plain(plain, &more), 321);
    return check_done();
}
