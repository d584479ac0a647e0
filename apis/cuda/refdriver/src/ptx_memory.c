/* Loads, stores and atomic operations of a running kernel. Every address is checked: a wrong one ends the kernel. */
#include <pthread.h>
#include <string.h>

#include "memory.h"
#include "module.h"
#include "ptx_run.h"

static char *inside(char *bytes, size_t room, uint64_t offset, size_t size)
{
    return offset <= room && size <= room - offset ? bytes + offset : NULL;
}

static char *shared(struct run *run, uint64_t address, size_t size)
{
    if (address >= DYNAMIC_SHARED)
        return inside(run->dynamic, run->launch->shared, address - DYNAMIC_SHARED, size);
    return inside(run->shared, run->code->shared_bytes, address, size);
}

static char *global(struct run *run, uint64_t address, size_t size)
{
    if (address - run->cached_start >= run->cached_size || size > run->cached_size - (address - run->cached_start)) {
        if (!memory_extent(address, run->launch->function->module->context, &run->cached_start, &run->cached_size, &run->cached_bytes)) {
            run->cached_size = 0;
            return NULL;
        }
        if (size > run->cached_size - (address - run->cached_start))
            return NULL;
    }
    return run->cached_bytes + (address - run->cached_start);
}

char *run_memory(struct run *run, struct thread *thread, enum ptx_space space, uint64_t address, size_t size)
{
    char *bytes;

    if (address % size) {
        run->fault = CUDA_ERROR_MISALIGNED_ADDRESS;
        return NULL;
    }
    /* The parameters of a kernel are the launch's, those of a call the thread's. */
    if ((space == SPACE_GENERIC || space == SPACE_PARAM) && address >= LOCAL_WINDOW) {
        space = SPACE_LOCAL;
        address -= LOCAL_WINDOW;
    } else if (space == SPACE_GENERIC && address >= SHARED_WINDOW) {
        space = SPACE_SHARED;
        address -= SHARED_WINDOW;
    }
    switch (space) {
    case SPACE_SHARED:
        bytes = shared(run, address, size);
        break;
    case SPACE_LOCAL:
        bytes = inside(thread->local, run->code->local_bytes, address, size);
        break;
    case SPACE_PARAM:
        bytes = inside((char *)run->launch->parameters, run->launch->size, address, size);
        break;
    default:
        bytes = global(run, address, size);
    }
    if (!bytes)
        run->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
    return bytes;
}

void run_load(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    const struct ptx_operand *to = &instruction->operands[0];
    size_t size = ptx_size(instruction->type);
    int count = to->kind == OPERAND_VECTOR ? instruction->vector_size : 1;
    char *bytes = run_memory(run, thread, instruction->space, run_value(run, thread, &instruction->operands[1]), size * (size_t)count);

    for (int i = 0; bytes && i < count; i++, bytes += size) {
        uint64_t value = 0;

        memcpy(&value, bytes, size);
        /* A register may be wider than what is loaded. */
        if (is_signed(instruction->type))
            value = (uint64_t)to_signed(value, size);
        if (to->kind != OPERAND_VECTOR)
            run_set(thread, to, value, 8);
        else if (instruction->vector[i] >= 0)
            thread->registers[instruction->vector[i]] = value;
    }
}

void run_store(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    const struct ptx_operand *from = &instruction->operands[1];
    size_t size = ptx_size(instruction->type);
    int count = from->kind == OPERAND_VECTOR ? instruction->vector_size : 1;
    char *bytes = run_memory(run, thread, instruction->space, run_value(run, thread, &instruction->operands[0]), size * (size_t)count);

    for (int i = 0; bytes && i < count; i++, bytes += size) {
        uint64_t value = from->kind == OPERAND_VECTOR ? thread->registers[instruction->vector[i]] : run_value(run, thread, from);
        memcpy(bytes, &value, size);
    }
}

static uint64_t add(enum ptx_type type, uint64_t a, uint64_t b)
{
    if (type == PTX_F32) {
        uint32_t bits_a = (uint32_t)a, bits_b = (uint32_t)b;
        float x, y;
        memcpy(&x, &bits_a, 4);
        memcpy(&y, &bits_b, 4);
        x += y;
        memcpy(&bits_a, &x, 4);
        return bits_a;
    }
    if (type == PTX_F64) {
        double x, y;
        memcpy(&x, &a, 8);
        memcpy(&y, &b, 8);
        x += y;
        memcpy(&a, &x, 8);
        return a;
    }
    return a + b;
}

static uint64_t act(const struct ptx_instruction *instruction, uint64_t old, uint64_t b, uint64_t c)
{
    enum ptx_type type = instruction->type;

    switch (instruction->action) {
    case ACTION_ADD:
        return add(type, old, b);
    case ACTION_AND:
        return old & b;
    case ACTION_OR:
        return old | b;
    case ACTION_XOR:
        return old ^ b;
    case ACTION_MIN:
        return run_compare(COMPARE_LT, type, b, old) ? b : old;
    case ACTION_MAX:
        return run_compare(COMPARE_GT, type, b, old) ? b : old;
    case ACTION_CAS:
        return old == to_unsigned(b, ptx_size(type)) ? c : old;
    case ACTION_INC:
        return old >= to_unsigned(b, ptx_size(type)) ? 0 : old + 1;
    case ACTION_DEC:
        return old == 0 || old > to_unsigned(b, ptx_size(type)) ? b : old - 1;
    default: /* exch */
        return b;
    }
}

void run_atomic(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    /* Kernels of several streams run at the same time. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const struct ptx_operand *operands = instruction->operands + (instruction->opcode == OP_ATOM);
    size_t size = ptx_size(instruction->type);
    char *bytes = run_memory(run, thread, instruction->space, run_value(run, thread, &operands[0]), size);
    uint64_t old = 0, new;

    if (!bytes)
        return;
    pthread_mutex_lock(&lock);
    memcpy(&old, bytes, size);
    new = act(instruction, old, run_value(run, thread, &operands[1]), run_value(run, thread, &operands[2]));
    memcpy(bytes, &new, size);
    pthread_mutex_unlock(&lock);
    if (instruction->opcode == OP_ATOM)
        run_set(thread, &instruction->operands[0], old, size);
}
