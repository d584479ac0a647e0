/* Numbers and structs by value. */
#include <stdatomic.h>
#include <string.h>

#include "state.h"

double ta_scalars(int8_t a, uint8_t b, int16_t c, uint16_t d, int32_t e, uint32_t f, int64_t g, uint64_t h,
                  float i, double j, _Bool k, char l) {
    return a + 2.0 * b + 3.0 * c + 4.0 * d + 5.0 * e + 6.0 * f + 7.0 * (double)g + 8.0 * (double)h + 9.0 * i +
           10.0 * j + 11.0 * k + 12.0 * l;
}

int8_t ta_negate8(int8_t v) {
    return (int8_t)-v;
}

uint16_t ta_increment16(uint16_t v) {
    return (uint16_t)(v + 1);
}

int64_t ta_negate64(int64_t v) {
    return (int64_t)(0 - (uint64_t)v);
}

float ta_half_float(float v) {
    return v / 2;
}

double ta_half(double v) {
    return v / 2;
}

_Bool ta_not(_Bool v) {
    return !v;
}

ta_color ta_color_next(ta_color c) {
    return (ta_color)((c + 1) % 3);
}

ta_point ta_point_add(ta_point a, ta_point b) {
    return (ta_point){a.x + b.x, a.y + b.y, a.tag * 100 + b.tag};
}

ta_small ta_small_swap(ta_small v) {
    return (ta_small){v.b, (int8_t)v.a};
}

ta_pair ta_pair_multiply(ta_pair a, ta_pair b) {
    return (ta_pair){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

ta_quad ta_quad_reverse(ta_quad v) {
    return (ta_quad){{v.low[2], v.low[1], v.low[0]}, -v.high};
}

int64_t ta_value_bits(ta_value v) {
    return v.integer;
}

_Atomic int32_t library_level;

void ta_level_set(int32_t l) {
    atomic_store(&library_level, l);
}

int32_t ta_level_get(void) {
    return atomic_load(&library_level);
}
