/* Values that calling conventions treat each in its own way. */
#include "testapi_passed.h"

ta_bits ta_bits_next(ta_bits value) {
    value.day++;
    value.month += 2;
    value.at *= 2;
    value.sign = -1;
    return value;
}

int ta_bits_sum(ta_bits value) {
    return value.day + 100 * value.month + 10000 * value.sign;
}

ta_packed ta_packed_double(ta_packed value, char before, int behind) {
    value.c = (char)(value.c + before);
    value.i = value.i * 2 + behind;
    value.d *= 2;
    return value;
}

ta_aligned ta_aligned_double(int before, ta_aligned value) {
    value.c = (char)(value.c + before);
    value.d *= 2;
    return value;
}

ta_number ta_number_double(ta_number value) {
    value.d *= 2;
    return value;
}

double ta_number_half(ta_number value) {
    return value.d / 2;
}

ta_tagged ta_tagged_double(ta_tagged value) {
    value.u.f *= 2;
    value.g *= 3;
    value.a.b.c.d.deep = (short)(value.a.b.c.d.deep * 4);
    return value;
}

int ta_nothing_add(ta_nothing none, int value) {
    (void)none;
    return value + 1;
}

ta_wide ta_wide_double(ta_wide value) {
    value.x *= 2;
    return value;
}

long double ta_long_double_third(long double value) {
    return value / 3;
}

__int128 ta_int128_triple(int before, __int128 value) {
    return value * 3 + before;
}

ta_vector ta_vector_double(ta_vector value) {
    return value + value;
}

_Complex double ta_complex_turn(_Complex double value) {
    return value * (_Complex double)__extension__ 1.0i;
}

_Complex float ta_complex_turn_float(_Complex float value) {
    return value * (_Complex float)__extension__ 1.0fi;
}

int ta_renamed(int value) {
    return value + 2;
}

double ta_call_with_values(ta_number_function function, void *context, ta_bits bits) {
    if (!function)
        return 0;
    ta_number number = function(bits, 1.0L / 3, context);
    return number.d;
}

int ta_call_plain(ta_plain_function function, void *context) {
    return function ? function(20, context) + 1 : 0;
}
