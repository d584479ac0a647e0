/*
 * Values that calling conventions treat each in its own way: bit-fields, packed and over-aligned
 * members, unions of numbers, nested structs, vectors, wide and complex numbers.
 */
#ifndef TESTAPI_PASSED_H
#define TESTAPI_PASSED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ta_bits {
    unsigned day : 5, month : 4;
    double at;
    signed char sign : 2;
} ta_bits;
typedef struct __attribute__((packed)) ta_packed {
    char c;
    int i;
    double d;
} ta_packed;
typedef struct ta_aligned {
    char c;
    double d __attribute__((aligned(32)));
} ta_aligned;
typedef union ta_number {
    float f;
    double d;
} ta_number;
typedef struct ta_tagged {
    union {
        float f;
        int i;
    } u;
    float g;
    struct {
        struct {
            struct {
                struct {
                    short deep;
                } d;
            } c;
        } b;
    } a;
} ta_tagged;
typedef struct ta_nothing {
} ta_nothing;
typedef struct ta_wide {
    long double x;
} ta_wide;
typedef float ta_vector __attribute__((vector_size(16)));

ta_bits ta_bits_next(ta_bits value);
int ta_bits_sum(ta_bits value);
ta_packed ta_packed_double(ta_packed value, char before, int behind);
ta_aligned ta_aligned_double(int before, ta_aligned value);
ta_number ta_number_double(ta_number value);
double ta_number_half(ta_number value);
ta_tagged ta_tagged_double(ta_tagged value);
int ta_nothing_add(ta_nothing none, int value);
ta_wide ta_wide_double(ta_wide value);
long double ta_long_double_third(long double value);
__int128 ta_int128_triple(int before, __int128 value);
ta_vector ta_vector_double(ta_vector value);
_Complex double ta_complex_turn(_Complex double value);
_Complex float ta_complex_turn_float(_Complex float value);
/* Has another symbol than its name. */
int ta_renamed(int value) __asm__("ta_renamed_v2");

typedef ta_number (*ta_number_function)(ta_bits bits, long double wide, void *context);
double ta_call_with_values(ta_number_function function, void *context, ta_bits bits);
/* A parameter of function type: a pointer, as C has it. */
typedef int ta_plain_function(int value, void *context);
int ta_call_plain(ta_plain_function function, void *context);

#ifdef __cplusplus
}
#endif

#endif
