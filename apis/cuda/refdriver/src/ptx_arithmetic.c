/* Arithmetic, comparison and conversion. Registers hold bits; an instruction's type says what they mean. */
#include <math.h>
#include <string.h>

#include "ptx_run.h"

static double to_double(enum ptx_type type, uint64_t bits)
{
    uint32_t narrow_bits = (uint32_t)bits;
    float narrow;
    double wide;

    if (type == PTX_F32) {
        memcpy(&narrow, &narrow_bits, sizeof(narrow));
        return narrow;
    }
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

static float to_float(uint64_t bits) { return (float)to_double(PTX_F32, bits); }

static uint64_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static uint64_t from_double(enum ptx_type type, double value)
{
    uint64_t bits;

    if (type == PTX_F32)
        return float_bits((float)value);
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

bool run_compare(enum ptx_compare compare, enum ptx_type type, uint64_t a, uint64_t b)
{
    size_t size = ptx_size(type);
    bool less, equal, unordered = false;

    if (is_float(type)) {
        double x = to_double(type, a), y = to_double(type, b);
        unordered = isnan(x) || isnan(y);
        less = x < y;
        equal = x == y;
    } else if (is_signed(type)) {
        less = to_signed(a, size) < to_signed(b, size);
        equal = to_signed(a, size) == to_signed(b, size);
    } else {
        less = to_unsigned(a, size) < to_unsigned(b, size);
        equal = to_unsigned(a, size) == to_unsigned(b, size);
    }
    switch (compare) {
    case COMPARE_EQ: return equal;
    case COMPARE_NE: return !equal && !unordered;
    case COMPARE_LT: return less;
    case COMPARE_LE: return less || equal;
    case COMPARE_GT: return !less && !equal && !unordered;
    case COMPARE_GE: return !less && !unordered;
    case COMPARE_EQU: return equal || unordered;
    case COMPARE_NEU: return !equal;
    case COMPARE_LTU: return less || unordered;
    case COMPARE_LEU: return less || equal || unordered;
    case COMPARE_GTU: return !less && !equal;
    case COMPARE_GEU: return !less;
    case COMPARE_NUM: return !unordered;
    default: return unordered;
    }
}

static double rounded(enum ptx_rounding rounding, double value)
{
    switch (rounding) {
    case ROUND_ZERO: return trunc(value);
    case ROUND_DOWN: return floor(value);
    case ROUND_UP: return ceil(value);
    default: return rint(value);
    }
}

/* Out of range becomes the nearest value, and what is no number 0. */
static uint64_t float_to_integer(const struct ptx_instruction *instruction, double value)
{
    size_t size = ptx_size(instruction->type);
    double high;

    if (isnan(value))
        return 0;
    value = rounded(instruction->rounding, value);
    if (is_signed(instruction->type)) {
        high = ldexp(1, (int)(8 * size - 1));
        if (value >= high)
            return (1ULL << (8 * size - 1)) - 1;
        return value < -high ? 1ULL << (8 * size - 1) : (uint64_t)(int64_t)value;
    }
    high = ldexp(1, (int)(8 * size));
    if (value >= high)
        return to_unsigned(~0ULL, size);
    return value <= 0 ? 0 : (uint64_t)value;
}

static uint64_t saturated(const struct ptx_instruction *instruction, uint64_t value)
{
    size_t size = ptx_size(instruction->type);
    bool is_negative = is_signed(instruction->from) && (int64_t)value < 0;
    uint64_t high = is_signed(instruction->type) ? (1ULL << (8 * size - 1)) - 1 : to_unsigned(~0ULL, size);

    if (!is_negative)
        return value > high ? high : value;
    if (!is_signed(instruction->type))
        return 0;
    return (int64_t)value < -(int64_t)high - 1 ? (uint64_t)(-(int64_t)high - 1) : value;
}

uint64_t run_convert(const struct ptx_instruction *instruction, uint64_t value)
{
    enum ptx_type from = instruction->from ? instruction->from : instruction->type;
    size_t size = ptx_size(from);

    if (is_float(from)) {
        double number = to_double(from, value);
        if (!is_float(instruction->type))
            return float_to_integer(instruction, number);
        if (instruction->to_integer)
            number = rounded(instruction->rounding, number);
        if (instruction->saturate)
            number = number > 1 ? 1 : number > 0 ? number : 0;
        return from_double(instruction->type, number);
    }
    value = is_signed(from) ? (uint64_t)to_signed(value, size) : to_unsigned(value, size);
    if (instruction->type == PTX_F32)
        return float_bits(is_signed(from) ? (float)(int64_t)value : (float)value);
    if (instruction->type == PTX_F64)
        return from_double(PTX_F64, is_signed(from) ? (double)(int64_t)value : (double)value);
    return instruction->saturate ? saturated(instruction, value) : value;
}

/* --- floating point --- */

static bool float_arithmetic(const struct ptx_instruction *instruction, const uint64_t *operands, uint64_t *result)
{
    enum ptx_type type = instruction->type;
    bool narrow = type == PTX_F32;
    double a = to_double(type, operands[0]), b = to_double(type, operands[1]), c = to_double(type, operands[2]), d;

    /* Sums, products, quotients and roots of floats are the same when rounded from doubles; fma is not. */
    switch (instruction->opcode) {
    case OP_ADD: d = a + b; break;
    case OP_SUB: d = a - b; break;
    case OP_MUL: d = a * b; break;
    case OP_DIV: d = a / b; break;
    case OP_FMA: case OP_MAD:
        d = narrow ? fmaf(to_float(operands[0]), to_float(operands[1]), to_float(operands[2])) : fma(a, b, c);
        break;
    case OP_MIN: d = fmin(a, b); break;
    case OP_MAX: d = fmax(a, b); break;
    case OP_ABS: d = fabs(a); break;
    case OP_NEG: d = -a; break;
    case OP_SQRT: d = sqrt(a); break;
    case OP_RSQRT: d = 1 / sqrt(a); break;
    case OP_RCP: d = 1 / a; break;
    case OP_SIN: d = sin(a); break;
    case OP_COS: d = cos(a); break;
    case OP_EX2: d = exp2(a); break;
    case OP_LG2: d = log2(a); break;
    case OP_TANH: d = tanh(a); break;
    case OP_COPYSIGN: d = copysign(b, a); break;
    default: return false;
    }
    if (instruction->saturate)
        d = d > 1 ? 1 : d > 0 ? d : 0;
    *result = from_double(type, d);
    return true;
}

/* --- integers --- */

/* The product of a type's values, with all its bits. */
static __int128 product(enum ptx_type type, uint64_t a, uint64_t b)
{
    size_t size = ptx_size(type);

    if (is_signed(type))
        return (__int128)to_signed(a, size) * to_signed(b, size);
    return (__int128)((unsigned __int128)to_unsigned(a, size) * to_unsigned(b, size));
}

static uint64_t multiply(const struct ptx_instruction *instruction, uint64_t a, uint64_t b)
{
    __int128 whole = product(instruction->type, a, b);

    return (uint64_t)(instruction->half == HALF_HI ? whole >> 8 * ptx_size(instruction->type) : whole);
}

static uint64_t divide(enum ptx_type type, uint64_t a, uint64_t b, bool remainder)
{
    size_t size = ptx_size(type);

    b = to_unsigned(b, size);
    a = to_unsigned(a, size);
    if (!b)
        return remainder ? a : ~0ULL;
    if (!is_signed(type))
        return remainder ? a % b : a / b;
    if (to_signed(b, size) == -1)
        return remainder ? 0 : -a;
    return (uint64_t)(remainder ? to_signed(a, size) % to_signed(b, size) : to_signed(a, size) / to_signed(b, size));
}

static uint64_t shift_right(enum ptx_type type, uint64_t a, uint64_t count)
{
    size_t size = ptx_size(type);

    if (is_signed(type))
        return (uint64_t)(to_signed(a, size) >> (count >= 8 * size ? 8 * size - 1 : count));
    return count >= 8 * size ? 0 : to_unsigned(a, size) >> count;
}

static uint64_t extract(enum ptx_type type, uint64_t a, uint64_t start, uint64_t length)
{
    size_t bits = 8 * ptx_size(type);
    uint64_t value, sign;

    start &= 255;
    length &= 255;
    if (!length)
        return 0;
    sign = is_signed(type) ? a >> (start + length - 1 < bits ? start + length - 1 : bits - 1) & 1 : 0;
    value = start < bits ? to_unsigned(a, bits / 8) >> start : 0;
    if (length > bits - (start < bits ? start : bits))
        length = bits - (start < bits ? start : bits);
    if (length < 64) {
        value &= (1ULL << length) - 1;
        if (sign)
            value |= ~0ULL << length;
    }
    return value;
}

static uint64_t insert(size_t bits, uint64_t from, uint64_t into, uint64_t start, uint64_t length)
{
    uint64_t mask;

    start &= 255;
    length &= 255;
    if (start >= bits || !length)
        return into;
    mask = (length >= 64 ? ~0ULL : (1ULL << length) - 1) << start;
    return (into & ~mask) | (from << start & mask);
}

static uint64_t reversed(uint64_t value, size_t bits)
{
    uint64_t result = 0;

    for (size_t i = 0; i < bits; i++)
        result |= (value >> i & 1) << (bits - 1 - i);
    return result;
}

static bool integer_arithmetic(const struct ptx_instruction *instruction, const uint64_t *operands, uint64_t *result)
{
    enum ptx_type type = instruction->type;
    size_t size = ptx_size(type), bits = 8 * size;
    uint64_t a = operands[0], b = operands[1], c = operands[2], d;
    bool predicate = type == PTX_PRED;

    switch (instruction->opcode) {
    case OP_ADD: d = a + b; break;
    case OP_SUB: d = a - b; break;
    case OP_MUL: d = multiply(instruction, a, b); break;
    case OP_MAD: d = multiply(instruction, a, b) + c; break;
    case OP_DIV: d = divide(type, a, b, false); break;
    case OP_REM: d = divide(type, a, b, true); break;
    case OP_SAD: d = c + (run_compare(COMPARE_LT, type, a, b) ? b - a : a - b); break;
    case OP_MIN: d = run_compare(COMPARE_LT, type, a, b) ? a : b; break;
    case OP_MAX: d = run_compare(COMPARE_GT, type, a, b) ? a : b; break;
    case OP_ABS: d = to_signed(a, size) < 0 ? -a : a; break;
    case OP_NEG: d = -a; break;
    case OP_AND: d = a & b; break;
    case OP_OR: d = a | b; break;
    case OP_XOR: d = a ^ b; break;
    case OP_NOT: d = predicate ? !a : ~a; break;
    case OP_CNOT: d = !to_unsigned(a, size); break;
    case OP_SHL: d = to_unsigned(b, 4) >= bits ? 0 : a << to_unsigned(b, 4); break;
    case OP_SHR: d = shift_right(type, a, to_unsigned(b, 4)); break;
    case OP_POPC: d = (uint64_t)__builtin_popcountll(to_unsigned(a, size)); break;
    case OP_CLZ:
        a = to_unsigned(a, size);
        d = a ? (uint64_t)__builtin_clzll(a) - (64 - bits) : bits;
        break;
    case OP_BREV: d = reversed(a, bits); break;
    case OP_BFE: d = extract(type, a, b, c); break;
    case OP_BFI: d = insert(bits, a, b, c, operands[3]); break;
    default: return false;
    }
    *result = d;
    return true;
}

bool run_arithmetic(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    size_t size = ptx_size(instruction->type);
    uint64_t operands[4], result;

    for (int i = 0; i < 4; i++)
        operands[i] = run_value(run, thread, &instruction->operands[i + 1]);
    switch (instruction->opcode) {
    case OP_SELP:
        result = operands[2] ? operands[0] : operands[1];
        break;
    case OP_CVT:
        result = run_convert(instruction, operands[0]);
        /* A narrower result fills a wider register by its sign. */
        if (is_signed(instruction->type))
            result = (uint64_t)to_signed(result, size);
        size = is_float(instruction->type) ? size : 8;
        if (!is_signed(instruction->type) && size == 8)
            result = to_unsigned(result, ptx_size(instruction->type));
        break;
    case OP_ACTIVEMASK:
        result = 1ULL << thread->linear % 32;
        break;
    default:
        if (is_float(instruction->type) ? !float_arithmetic(instruction, operands, &result)
                                        : !integer_arithmetic(instruction, operands, &result))
            return false;
        if (instruction->half == HALF_WIDE)
            size *= 2;
        if (instruction->opcode == OP_POPC || instruction->opcode == OP_CLZ)
            size = 4;
    }
    run_set(thread, &instruction->operands[0], result, size);
    return true;
}
