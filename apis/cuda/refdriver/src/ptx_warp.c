/* Operations of the 32 threads of a warp together: exchanging values (shfl), voting, waiting for each other. */
#include "ptx_run.h"

enum { WARP = 32 };

/* All threads that the mask names, and that have not ended, are at the same instruction. */
static bool met(const struct thread *warp, unsigned count, const struct thread *thread)
{
    for (unsigned i = 0; i < count; i++)
        if (thread->mask >> i & 1 && warp[i].state != THREAD_DONE &&
            (warp[i].state != THREAD_AT_WARP || warp[i].next != thread->next))
            return false;
    return true;
}

static bool takes_part(const struct thread *warp, unsigned i, const struct thread *first)
{
    return first->mask >> i & 1 && warp[i].state == THREAD_AT_WARP && warp[i].next == first->next;
}

static void shuffle(struct run *run, struct thread *warp, unsigned count, unsigned lane,
                    const struct ptx_instruction *instruction)
{
    struct thread *thread = &warp[lane];
    unsigned distance = (unsigned)run_value(run, thread, &instruction->operands[2]) & 31;
    unsigned control = (unsigned)run_value(run, thread, &instruction->operands[3]);
    unsigned segment = control >> 8 & 31, limit = (lane & segment) | (control & 31 & ~segment);
    int from = instruction->action == ACTION_UP     ? (int)lane - (int)distance
               : instruction->action == ACTION_DOWN ? (int)(lane + distance)
               : instruction->action == ACTION_BFLY ? (int)(lane ^ distance)
                                                    : (int)((lane & segment) | (distance & ~segment));
    bool valid = instruction->action == ACTION_UP ? from >= (int)limit : from <= (int)limit;

    if (!valid || from < 0 || from >= (int)count)
        from = (int)lane;
    run_set(thread, &instruction->operands[0], warp[from].offered, 4);
    if (instruction->second >= 0)
        thread->registers[instruction->second] = valid;
}

static void vote(struct thread *warp, unsigned count, struct thread *first, const struct ptx_instruction *instruction)
{
    uint64_t ballot = 0, all = 0, result;

    for (unsigned i = 0; i < count; i++)
        if (takes_part(warp, i, first)) {
            all |= 1ULL << i;
            ballot |= (uint64_t)(warp[i].offered & 1) << i;
        }
    result = instruction->action == ACTION_BALLOT ? ballot : instruction->action == ACTION_ANY ? ballot != 0 : ballot == all;
    for (unsigned i = 0; i < count; i++)
        if (all >> i & 1)
            run_set(&warp[i], &instruction->operands[0], result, 4);
}

static bool exchange(struct run *run, struct thread *warp, unsigned count, struct thread *first)
{
    const struct ptx_instruction *instruction = &run->code->instructions[first->next];
    bool part[WARP];

    if (!met(warp, count, first))
        return false;
    for (unsigned i = 0; i < count; i++)
        part[i] = takes_part(warp, i, first);
    if (instruction->opcode == OP_VOTE)
        vote(warp, count, first, instruction);
    for (unsigned i = 0; i < count; i++)
        if (part[i] && instruction->opcode == OP_SHFL)
            shuffle(run, warp, count, i, instruction);
    for (unsigned i = 0; i < count; i++)
        if (part[i]) {
            warp[i].state = THREAD_RUNS;
            warp[i].next++;
        }
    return true;
}

bool run_warps(struct run *run)
{
    bool any = false;

    for (unsigned start = 0; start < run->thread_count; start += WARP) {
        struct thread *warp = run->threads + start;
        unsigned count = run->thread_count - start < WARP ? run->thread_count - start : WARP;

        for (unsigned i = 0; i < count; i++)
            /* A mask without the thread itself is undefined; it must not wait for ever. */
            if (warp[i].state == THREAD_AT_WARP) {
                warp[i].mask |= 1ULL << i;
                any |= exchange(run, warp, count, &warp[i]);
            }
    }
    return any;
}
