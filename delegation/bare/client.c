/* Programs of the client, each in ring 3. What they find is in RESULTS; HC_DONE ends them. */
#include "client.h"

#include "layout.h"

struct reply {
    uint64_t value, status;
};
typedef struct reply delegate(uint64_t handler, uint64_t argument);
delegate trampoline, trampoline_by_exit, trampoline_arch_prctl;

static volatile struct results *const results = (volatile struct results *)RESULTS;

static _Noreturn void done(uint64_t value)
{
    __asm__ volatile("vmcall" : : "a"(HC_DONE), "b"(value) : "memory");
    __builtin_unreachable();
}

static uint64_t exits(void)
{
    uint64_t count = HC_EXITS;
    __asm__ volatile("vmcall" : "+a"(count) : : "memory");
    return count;
}

static uint64_t now(void) { return __builtin_ia32_rdtsc(); }

static void measure(volatile struct measured *measured, delegate *call)
{
    uint64_t wrong = 0;
    for (int warm = 0; warm < 100; warm++) call(ADD, 5);
    uint64_t exits_before = exits(), ticks_before = now();
    for (uint64_t round = 0; round < CALLS; round++) {
        struct reply reply = call(ADD, round);
        wrong += reply.value != round + 1 || reply.status != RETURNED;
    }
    measured->ticks = now() - ticks_before;
    /* One exit is the count's own. */
    measured->exits = exits() - exits_before - 1;
    measured->wrong = wrong;
}

/* Not inlined, as a function of a library. */
__attribute__((noinline)) static struct reply plain(uint64_t handler, uint64_t argument)
{
    __asm__ volatile("");
    return (struct reply){argument + 1, handler};
}

static struct reply null_exit(uint64_t handler, uint64_t argument)
{
    uint32_t eax = 0, ebx, ecx = 0, edx;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return (struct reply){argument + 1, handler};
}

static struct reply null_system_call(uint64_t handler, uint64_t argument)
{
    __asm__ volatile("syscall" : : "a"(158), "D"(0x1001), "S"(0) : "rcx", "r10", "r11", "rdx", "memory");
    return (struct reply){argument + 1, handler};
}

void client_measure(void)
{
    measure(&results->delegated, trampoline);
    measure(&results->by_exit, trampoline_by_exit);
    measure(&results->arch_prctl, trampoline_arch_prctl);
    measure(&results->plain, plain);
    measure(&results->null_exit, null_exit);
    measure(&results->null_system_call, null_system_call);
    done(trampoline(READ_FS, 0).value);
}

/* Calls one handler; what a reply on the lane would be is in the window. */
static volatile uint64_t *const replies = (volatile uint64_t *)(WINDOW + WINDOW_REPLIES);
static volatile uint64_t *const reply_value = (volatile uint64_t *)(WINDOW + WINDOW_REPLY);

static uint64_t call(uint64_t handler, uint64_t argument)
{
    uint64_t before = *replies;
    for (;;) {
        struct reply reply = trampoline(handler, argument);
        results->statuses[reply.status]++;
        if (reply.status == RETURNED) return reply.value;
        if (reply.status == WAIT_ON_LANE) return *replies == before + 1 ? *reply_value : 0xbad;
        /* REFUSED: a lane would carry it; here it is tried again. */
    }
}

void client_call(uint64_t handler, uint64_t argument)
{
    results->fs_before = now();
    __asm__ volatile("rdfsbase %0" : "=r"(results->fs_before));
    uint64_t value = call(handler, argument);
    __asm__ volatile("rdfsbase %0" : "=r"(results->fs_after));
    done(value);
}

/* One call, interrupted after each number of ticks up to ROUNDS; it returns the number of wrong results. */
void client_interrupted(uint64_t handler, uint64_t rounds)
{
    uint64_t wrong = 0;
    for (uint64_t ticks = 1; ticks <= rounds; ticks++) {
        __asm__ volatile("vmcall" : : "a"(HC_SLICE), "b"(ticks) : "memory");
        uint64_t value = call(handler, ticks), fs;
        __asm__ volatile("rdfsbase %0" : "=r"(fs));
        uint64_t right = handler == COUNT ? ticks : handler == DO_SYSCALL ? ticks + 4242 : 0x5e47e4;
        wrong += value != right || fs != results->fs_before;
    }
    results->replies = *replies;
    done(wrong);
}

/* A call with DF and AC set and every floating-point exception unmasked: the handler has the server's state, and the client gets its
 * own back. Indices of no handler are refused. */
void client_state(void)
{
    const uint32_t mxcsr = 0, own_mxcsr = 0x1f80;
    const uint16_t control = 0x340, own_control = 0x37f;
    uint64_t flags;
    uint32_t mxcsr_after;
    uint16_t control_after;
    struct reply reply;
    static const uint64_t no_handlers[] = {HANDLERS, 64, 4096, 1ull << 31, 1ull << 63, ~0ull};
    __asm__ volatile("ldmxcsr %0; fldcw %1; pushfq; orl $0x40400, (%%rsp); popfq" : : "m"(mxcsr), "m"(control) : "cc");
    reply = trampoline(STATE, 0);
    __asm__ volatile("pushfq; pop %0; stmxcsr %1; fnstcw %2; cld" : "=r"(flags), "=m"(mxcsr_after), "=m"(control_after));
    __asm__ volatile("ldmxcsr %0; fldcw %1; pushfq; andl $~0x40400, (%%rsp); popfq" : : "m"(own_mxcsr), "m"(own_control) : "cc");
    results->state = reply.value;
    results->state_kept = mxcsr_after == mxcsr && control_after == control && (flags & 0x40400) == 0x40400;
    for (unsigned at = 0; at < sizeof no_handlers / sizeof *no_handlers; at++) results->refused += trampoline(no_handlers[at], 0).status == REFUSED;
    done(0);
}

/* Calls while the berth is another client's, interrupted likewise; it returns how many were refused. */
void client_refused(uint64_t rounds)
{
    uint64_t refused = 0;
    for (uint64_t ticks = 1; ticks <= rounds; ticks++) {
        __asm__ volatile("vmcall" : : "a"(HC_SLICE), "b"(ticks) : "memory");
        refused += trampoline(COUNT, 0).status == REFUSED;
    }
    done(refused);
}

void client_revocations(uint64_t rounds)
{
    uint64_t old = 0, last = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        last = call(READ_SECRET, 0);
        old += last != round + results->first;
        __asm__ volatile("vmcall" : : "a"(HC_REVOKE) : "memory");
    }
    results->last = last;
    done(old);
}
