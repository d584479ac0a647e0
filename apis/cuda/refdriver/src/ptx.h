/* PTX, NVIDIA's virtual instruction set, as far as simple kernels need it: parsed once, then interpreted. */
#ifndef REFDRIVER_PTX_H
#define REFDRIVER_PTX_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptx_type {
    PTX_NONE,
    PTX_PRED,
    PTX_B8, PTX_B16, PTX_B32, PTX_B64,
    PTX_U8, PTX_U16, PTX_U32, PTX_U64,
    PTX_S8, PTX_S16, PTX_S32, PTX_S64,
    PTX_F32, PTX_F64,
};

enum ptx_space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM };

/* Where shared and local memory lie in the generic address space; no device or host address is that high. */
#define SHARED_WINDOW 0x1000000000000000ULL
#define LOCAL_WINDOW 0x2000000000000000ULL
/* In shared memory, where the part begins whose size the launch gives. */
#define DYNAMIC_SHARED 0x1000000ULL

enum ptx_opcode {
    OP_UNSUPPORTED,
    OP_ABS, OP_ACTIVEMASK, OP_ADD, OP_AND, OP_ATOM, OP_BAR, OP_BFE, OP_BFI, OP_BRA, OP_BREV, OP_CALL, OP_CLZ, OP_CNOT,
    OP_COPYSIGN, OP_COS, OP_CVT, OP_CVTA, OP_DIV, OP_EX2, OP_EXIT, OP_FMA, OP_LD, OP_LG2, OP_MAD, OP_MAX,
    OP_MEMBAR, OP_MIN, OP_MOV, OP_MUL, OP_NEG, OP_NOT, OP_OR, OP_POPC, OP_RCP, OP_RED, OP_REM, OP_RSQRT, OP_SAD,
    OP_SELP, OP_SETP, OP_SHFL, OP_SHL, OP_SHR, OP_SIN, OP_SQRT, OP_ST, OP_SUB, OP_TANH, OP_TRAP, OP_VOTE, OP_XOR,
};

enum ptx_compare {
    COMPARE_EQ, COMPARE_NE, COMPARE_LT, COMPARE_LE, COMPARE_GT, COMPARE_GE,
    COMPARE_EQU, COMPARE_NEU, COMPARE_LTU, COMPARE_LEU, COMPARE_GTU, COMPARE_GEU, COMPARE_NUM, COMPARE_NAN,
};

/* The operations of atom and red, how setp combines, how vote and shfl work, what is called. */
enum ptx_action {
    ACTION_NONE,
    ACTION_ADD, ACTION_AND, ACTION_OR, ACTION_XOR, ACTION_MIN, ACTION_MAX, ACTION_EXCH, ACTION_CAS, ACTION_INC,
    ACTION_DEC, ACTION_UP, ACTION_DOWN, ACTION_BFLY, ACTION_IDX, ACTION_ALL, ACTION_ANY, ACTION_BALLOT, ACTION_PRINT, ACTION_ASSERT,
};

enum ptx_half { HALF_NONE, HALF_LO, HALF_HI, HALF_WIDE };
enum ptx_rounding { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };

enum ptx_special {
    SPECIAL_TID_X, SPECIAL_TID_Y, SPECIAL_TID_Z, SPECIAL_NTID_X, SPECIAL_NTID_Y, SPECIAL_NTID_Z, SPECIAL_CTAID_X,
    SPECIAL_CTAID_Y, SPECIAL_CTAID_Z, SPECIAL_NCTAID_X, SPECIAL_NCTAID_Y, SPECIAL_NCTAID_Z, SPECIAL_LANEID,
    SPECIAL_WARPID, SPECIAL_CLOCK, SPECIAL_CLOCK64, SPECIAL_GLOBALTIMER, SPECIAL_SMID, SPECIAL_LANEMASK_LT,
    SPECIAL_LANEMASK_LE, SPECIAL_LANEMASK_EQ, SPECIAL_DYNAMIC_SMEM_SIZE, SPECIAL_NONE,
};

struct ptx_operand {
    enum { OPERAND_NONE, OPERAND_REGISTER, OPERAND_IMMEDIATE, OPERAND_SPECIAL, OPERAND_ADDRESS, OPERAND_VECTOR } kind;
    int index;      /* register, or -1 for an address without one; special register */
    uint64_t value; /* immediate, or offset of an address */
    bool negated;   /* !predicate */
};

struct ptx_instruction {
    uint8_t opcode, type, from, space, compare, action, half, rounding;
    bool saturate, to, to_integer, guard_negated;
    int guard; /* predicate register or -1 */
    int second; /* the other destination of `d|p`, or -1 */
    struct ptx_operand operands[5];
    int vector[4], vector_size; /* the registers of a { } operand */
    int target;
};

struct ptx_parameter {
    size_t offset, size;
};

/* An entry function. */
struct ptx_code {
    char *name;
    struct ptx_parameter *parameters;
    size_t parameter_count, parameter_bytes;
    struct ptx_instruction *instructions;
    int instruction_count, register_count;
    size_t shared_bytes, local_bytes;
    int maximum_threads;
    bool prints; /* there is a printf or an assert in it, whether or not it is reached */
    char *unsupported; /* the first instruction that cannot be run, or NULL */
};

struct ptx_global {
    char *name;
    CUdeviceptr address;
    size_t size;
    bool managed; /* memory that the CPU uses, too */
};

struct ptx_program {
    struct ptx_code **codes;
    size_t code_count;
    struct ptx_global *globals;
    size_t global_count;
    char message[200]; /* what is wrong with the text */
};

/* Memory for a variable of a program, at a device address; NULL where memory is out. */
typedef void *(*ptx_allocate)(void *environment, size_t size, bool managed, CUdeviceptr *address);

/* NULL where the text is wrong: then `message` says why. */
struct ptx_program *ptx_parse(const char *text, ptx_allocate allocate, void *environment, char message[200]);
void ptx_free(struct ptx_program *program);

/* --- between the files of the parser --- */

struct ptx_parser;

/* One instruction from its text, which is changed. False where it is wrong (see ptx_fail). */
bool ptx_parse_instruction(struct ptx_parser *parser, char *text, struct ptx_instruction *instruction);
bool ptx_fail(struct ptx_parser *parser, const char *what, const char *where);
/* Index of a register, or -1. */
int ptx_register(const struct ptx_parser *parser, const char *name, size_t length);
/* The address of a variable or parameter in its own space. */
bool ptx_symbol(const struct ptx_parser *parser, const char *name, size_t length, uint64_t *address);
/* The number of a label, made when first seen. */
int ptx_label(struct ptx_parser *parser, const char *name, size_t length);
enum ptx_type ptx_type_of(const char *name);
size_t ptx_size(enum ptx_type type);

#endif
