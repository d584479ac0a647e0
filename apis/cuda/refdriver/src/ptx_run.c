/* Runs a grid: block after block; the threads of a block one after the other up to the next barrier. */
#include "ptx_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "module.h"

enum { WARP = 32 };

static uint64_t nanoseconds(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t special(const struct run *run, const struct thread *thread, int which)
{
    const struct launch *launch = run->launch;
    unsigned lane = thread->linear % WARP;

    switch (which) {
    case SPECIAL_TID_X: case SPECIAL_TID_Y: case SPECIAL_TID_Z:
        return thread->index[which - SPECIAL_TID_X];
    case SPECIAL_NTID_X: case SPECIAL_NTID_Y: case SPECIAL_NTID_Z:
        return launch->block[which - SPECIAL_NTID_X];
    case SPECIAL_CTAID_X: case SPECIAL_CTAID_Y: case SPECIAL_CTAID_Z:
        return run->block[which - SPECIAL_CTAID_X];
    case SPECIAL_NCTAID_X: case SPECIAL_NCTAID_Y: case SPECIAL_NCTAID_Z:
        return launch->grid[which - SPECIAL_NCTAID_X];
    case SPECIAL_LANEID:
        return lane;
    case SPECIAL_WARPID:
        return thread->linear / WARP;
    case SPECIAL_LANEMASK_LT:
        return (1ULL << lane) - 1;
    case SPECIAL_LANEMASK_LE:
        return (2ULL << lane) - 1;
    case SPECIAL_LANEMASK_EQ:
        return 1ULL << lane;
    case SPECIAL_CLOCK:
        return (uint32_t)nanoseconds();
    case SPECIAL_CLOCK64: case SPECIAL_GLOBALTIMER:
        return nanoseconds();
    case SPECIAL_DYNAMIC_SMEM_SIZE:
        return launch->shared;
    default:
        return 0;
    }
}

uint64_t run_value(struct run *run, const struct thread *thread, const struct ptx_operand *operand)
{
    switch (operand->kind) {
    case OPERAND_REGISTER:
        return operand->negated ? !thread->registers[operand->index] : thread->registers[operand->index];
    case OPERAND_SPECIAL:
        return special(run, thread, operand->index);
    case OPERAND_ADDRESS:
        return operand->value + (operand->index >= 0 ? thread->registers[operand->index] : 0);
    default:
        return operand->value;
    }
}

void run_set(struct thread *thread, const struct ptx_operand *operand, uint64_t value, size_t bytes)
{
    if (operand->kind == OPERAND_REGISTER)
        thread->registers[operand->index] = to_unsigned(value, bytes);
}

/* Also between a register and its parts: mov.b64 {%r1, %r2}, %rd1 and back. */
static void move(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    const struct ptx_operand *to = &instruction->operands[0], *from = &instruction->operands[1];
    size_t bytes = ptx_size(instruction->type);
    uint64_t value = 0;

    if (from->kind == OPERAND_VECTOR) {
        size_t part = bytes / (size_t)instruction->vector_size;
        for (int i = instruction->vector_size; i-- > 0;)
            value = value << 8 * part | to_unsigned(thread->registers[instruction->vector[i]], part);
    } else {
        value = run_value(run, thread, from);
    }
    if (to->kind == OPERAND_VECTOR) {
        size_t part = bytes / (size_t)instruction->vector_size;
        for (int i = 0; i < instruction->vector_size; i++, value >>= 8 * part % 64)
            if (instruction->vector[i] >= 0)
                thread->registers[instruction->vector[i]] = to_unsigned(value, part);
        return;
    }
    run_set(thread, to, value, bytes);
}

static void change_space(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    uint64_t value = run_value(run, thread, &instruction->operands[1]);
    uint64_t window = instruction->space == SPACE_SHARED  ? SHARED_WINDOW
                      : instruction->space == SPACE_LOCAL ? LOCAL_WINDOW
                                                          : 0;

    run_set(thread, &instruction->operands[0], instruction->to ? value - window : value + window, 8);
}

static void compare(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    bool result = run_compare(instruction->compare, instruction->type, run_value(run, thread, &instruction->operands[1]),
                              run_value(run, thread, &instruction->operands[2]));
    bool opposite = !result;

    if (instruction->action != ACTION_NONE) {
        bool other = run_value(run, thread, &instruction->operands[3]);
        if (instruction->action == ACTION_AND) {
            result &= other;
            opposite &= other;
        } else if (instruction->action == ACTION_OR) {
            result |= other;
            opposite |= other;
        } else {
            result ^= other;
            opposite ^= other;
        }
    }
    run_set(thread, &instruction->operands[0], result, 1);
    if (instruction->second >= 0)
        thread->registers[instruction->second] = opposite;
}

/* Stops at an instruction by which the threads of a warp exchange values. */
static void meet_warp(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    int last = 0;

    while (last < 4 && instruction->operands[last + 1].kind != OPERAND_NONE)
        last++;
    thread->offered = run_value(run, thread, &instruction->operands[instruction->opcode == OP_BAR ? 0 : 1]);
    thread->mask = run_value(run, thread, &instruction->operands[last]);
    thread->state = THREAD_AT_WARP;
}

/* Runs a thread up to the next place where it has to wait for others. */
static void run_thread(struct run *run, struct thread *thread)
{
    const struct ptx_code *code = run->code;

    while (thread->state == THREAD_RUNS && run->fault == CUDA_SUCCESS) {
        const struct ptx_instruction *instruction = &code->instructions[thread->next];

        if (thread->next >= code->instruction_count) {
            thread->state = THREAD_DONE;
            return;
        }
        if (instruction->guard >= 0 && !thread->registers[instruction->guard] != instruction->guard_negated) {
            thread->next++;
            continue;
        }
        switch (instruction->opcode) {
        case OP_BRA:
            thread->next = instruction->target;
            continue;
        case OP_EXIT:
            thread->state = THREAD_DONE;
            return;
        case OP_BAR:
            if (instruction->action != ACTION_NONE) {
                meet_warp(run, thread, instruction);
                return;
            }
            thread->state = THREAD_AT_BARRIER;
            break;
        case OP_SHFL: case OP_VOTE:
            meet_warp(run, thread, instruction);
            return;
        case OP_LD:
            run_load(run, thread, instruction);
            break;
        case OP_ST:
            run_store(run, thread, instruction);
            break;
        case OP_ATOM: case OP_RED:
            run_atomic(run, thread, instruction);
            break;
        case OP_MOV:
            move(run, thread, instruction);
            break;
        case OP_CALL:
            run_call(run, thread, instruction);
            break;
        case OP_CVTA:
            change_space(run, thread, instruction);
            break;
        case OP_SETP:
            compare(run, thread, instruction);
            break;
        case OP_MEMBAR:
            break;
        case OP_TRAP:
            run->fault = CUDA_ERROR_LAUNCH_FAILED;
            break;
        default:
            if (!run_arithmetic(run, thread, instruction))
                run->fault = CUDA_ERROR_ILLEGAL_INSTRUCTION;
        }
        thread->next++;
    }
}

static bool release_barrier(struct run *run)
{
    bool any = false;

    for (unsigned i = 0; i < run->thread_count; i++)
        if (run->threads[i].state != THREAD_AT_BARRIER && run->threads[i].state != THREAD_DONE)
            return false;
    for (unsigned i = 0; i < run->thread_count; i++)
        if (run->threads[i].state == THREAD_AT_BARRIER) {
            run->threads[i].state = THREAD_RUNS;
            any = true;
        }
    return any;
}

static void run_block(struct run *run)
{
    if (run->code->shared_bytes)
        memset(run->shared, 0, run->code->shared_bytes);
    memset(run->dynamic, 0, run->launch->shared);
    for (unsigned i = 0; i < run->thread_count; i++) {
        run->threads[i].next = 0;
        run->threads[i].state = THREAD_RUNS;
    }
    for (;;) {
        bool live = false;

        for (unsigned i = 0; i < run->thread_count; i++) {
            run_thread(run, &run->threads[i]);
            live |= run->threads[i].state != THREAD_DONE;
        }
        if (!live || run->fault != CUDA_SUCCESS)
            return;
        if (!run_warps(run) && !release_barrier(run)) {
            /* Threads wait for others that never come. */
            run->fault = CUDA_ERROR_LAUNCH_TIMEOUT;
            return;
        }
    }
}

static bool prepare(struct run *run)
{
    const struct launch *launch = run->launch;
    size_t registers = (size_t)run->code->register_count + 1, local = run->code->local_bytes + 8;
    uint64_t *all_registers;
    char *all_local;

    run->thread_count = launch->block[0] * launch->block[1] * launch->block[2];
    run->threads = calloc(run->thread_count, sizeof(*run->threads));
    all_registers = calloc(run->thread_count, registers * sizeof(*all_registers));
    all_local = calloc(run->thread_count, local);
    run->shared = calloc(1, run->code->shared_bytes + 1);
    run->dynamic = calloc(1, (size_t)launch->shared + 1);
    if (!run->threads || !all_registers || !all_local || !run->shared || !run->dynamic) {
        free(all_registers);
        free(all_local);
        return false;
    }
    for (unsigned i = 0; i < run->thread_count; i++) {
        struct thread *thread = &run->threads[i];
        thread->registers = all_registers + i * registers;
        thread->local = all_local + i * local;
        thread->linear = i;
        thread->index[0] = i % launch->block[0];
        thread->index[1] = i / launch->block[0] % launch->block[1];
        thread->index[2] = i / launch->block[0] / launch->block[1];
    }
    return true;
}

CUresult launch_run(const struct launch *launch)
{
    struct run run = {.code = launch->function->code, .launch = launch};

    /* Launched nevertheless, as asked for by REFCUDA_MACHINE_CODE. */
    if (run.code->unsupported)
        return CUDA_SUCCESS;
    if (!prepare(&run)) {
        run.fault = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    } else {
        for (run.block[2] = 0; run.block[2] < launch->grid[2]; run.block[2]++)
            for (run.block[1] = 0; run.block[1] < launch->grid[1]; run.block[1]++)
                for (run.block[0] = 0; run.block[0] < launch->grid[0] && run.fault == CUDA_SUCCESS; run.block[0]++)
                    run_block(&run);
        free(run.threads[0].registers);
        free(run.threads[0].local);
    }
    free(run.threads);
    free(run.shared);
    free(run.dynamic);
    return run.fault;
}
