/* Running one launch: what the files of the interpreter share. */
#ifndef REFDRIVER_PTX_RUN_H
#define REFDRIVER_PTX_RUN_H

#include "operation.h"
#include "ptx.h"

enum thread_state { THREAD_RUNS, THREAD_AT_BARRIER, THREAD_AT_WARP, THREAD_DONE };

struct thread {
    uint64_t *registers;
    char *local;
    int next; /* instruction */
    enum thread_state state;
    unsigned index[3], linear;
    uint64_t offered, mask; /* to the other threads of its warp */
};

struct run {
    const struct ptx_code *code;
    const struct launch *launch;
    struct thread *threads;
    unsigned thread_count, block[3];
    char *shared, *dynamic;
    CUresult fault;
    /* The block of memory that was used last: nothing that a running kernel may use is freed meanwhile. */
    CUdeviceptr cached_start;
    size_t cached_size;
    char *cached_bytes;
};

uint64_t run_value(struct run *run, const struct thread *thread, const struct ptx_operand *operand);
/* Stores the lower bytes of a value as a register's whole content. */
void run_set(struct thread *thread, const struct ptx_operand *operand, uint64_t value, size_t bytes);

/* Arithmetic of one instruction; false where the opcode is none of arithmetic. */
bool run_arithmetic(struct run *run, struct thread *thread, const struct ptx_instruction *instruction);
uint64_t run_convert(const struct ptx_instruction *instruction, uint64_t value);
bool run_compare(enum ptx_compare compare, enum ptx_type type, uint64_t a, uint64_t b);

/* Memory; a wrong address sets `fault`. */
/* Where the bytes lie; NULL, and a fault, where nothing is. */
char *run_memory(struct run *run, struct thread *thread, enum ptx_space space, uint64_t address, size_t size);
void run_load(struct run *run, struct thread *thread, const struct ptx_instruction *instruction);
void run_store(struct run *run, struct thread *thread, const struct ptx_instruction *instruction);
void run_atomic(struct run *run, struct thread *thread, const struct ptx_instruction *instruction);

/* Calls one of the functions by which kernels print. */
void run_call(struct run *run, struct thread *thread, const struct ptx_instruction *instruction);

/* Lets the threads of warps go on that have met at an exchange; true where there were any. */
bool run_warps(struct run *run);

static inline uint64_t to_unsigned(uint64_t value, size_t bytes)
{
    return bytes >= 8 ? value : value & ((1ULL << 8 * bytes) - 1);
}

static inline int64_t to_signed(uint64_t value, size_t bytes)
{
    unsigned unused = 64 - 8 * (unsigned)bytes;
    return (int64_t)(value << unused) >> unused;
}

static inline bool is_signed(enum ptx_type type) { return type >= PTX_S8 && type <= PTX_S64; }
static inline bool is_float(enum ptx_type type) { return type == PTX_F32 || type == PTX_F64; }

#endif
