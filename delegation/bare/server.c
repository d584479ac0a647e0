/* The API server's program: its handlers, and the thread that sleeps while clients execute them. */
#include <stdint.h>

#include "layout.h"

struct thread_block {
    struct thread_block *self;
    uint64_t identity;
};

/* What a generated API server has: a table of its functions, and thread-local data that FS leads to. */
static struct thread_block block;

static uint64_t add(uint64_t value) { return value + 1; }

static uint64_t read_secret(uint64_t unused)
{
    (void)unused;
    return *(volatile uint64_t *)SERVER_SECRETS;
}

/* getpid, as far as this server's kernel is concerned: what it returns is the monitor's count. */
static uint64_t do_syscall(uint64_t value)
{
    uint64_t number = 39;
    __asm__ volatile("syscall" : "+a"(number) : : "rcx", "r11", "memory");
    return value + number;
}

static uint64_t do_fault(uint64_t address) { return *(volatile uint64_t *)address; }

static uint64_t do_ud2(uint64_t unused)
{
    __asm__ volatile("ud2");
    return unused;
}

static uint64_t do_int(uint64_t unused)
{
    __asm__ volatile("int $0x80");
    return unused;
}

static uint64_t do_cpuid(uint64_t leaf)
{
    uint32_t eax = leaf, ebx, ecx = 0, edx;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return ebx;
}

static uint64_t read_fs(uint64_t unused)
{
    uint64_t identity;
    (void)unused;
    __asm__ volatile("mov %%fs:8, %0" : "=r"(identity));
    return identity;
}

/* What any code in the API server's process can do, and so what a client can: read where it likes. */
static uint64_t peek(uint64_t address) { return *(volatile uint64_t *)address; }

/* How often it was executed. */
static uint64_t count(uint64_t unused)
{
    static uint64_t executed;
    (void)unused;
    return ++executed;
}

/* Flags, control word of the FPU, MXCSR: 16, 16 and 32 bits from above. */
static uint64_t state(uint64_t unused)
{
    uint64_t flags;
    uint32_t mxcsr;
    uint16_t control;
    (void)unused;
    __asm__ volatile("pushfq; pop %0; stmxcsr %1; fnstcw %2" : "=r"(flags), "=m"(mxcsr), "=m"(control));
    /* Arithmetic leaves flags of its own. */
    return (flags & 0xf700) << 48 | (flags & 0x240000) << 28 | (uint64_t)control << 32 | mxcsr;
}

/* Longer than any slice that the test gives. */
static uint64_t spin(uint64_t rounds)
{
    uint64_t sum = 0;
    for (volatile uint64_t at = 0; at < rounds; at++) sum += *(volatile uint64_t *)SERVER_SECRETS != 0;
    return sum;
}

void server_main(void)
{
    uint64_t *table = (uint64_t *)TABLE;
    uint64_t (*const handlers[HANDLERS])(uint64_t) = {add, read_secret, do_syscall, do_fault, do_ud2, do_int, do_cpuid, read_fs, peek, spin, count, state};
    for (int at = 0; at < HANDLERS; at++) table[at] = (uint64_t)handlers[at];
    block.self = &block;
    block.identity = 0x5e47e4;
    *(volatile uint64_t *)(BERTH + BERTH_RSP) = SERVER_STACK + 0x2000;
    *(volatile uint64_t *)(BERTH + BERTH_FS) = (uint64_t)&block;
    *(volatile uint64_t *)WINDOW = (uint64_t)&block; /* the paper's trampoline takes it from here */
    *(volatile uint32_t *)(BERTH + BERTH_MXCSR) = 0x1f80;
    *(volatile uint32_t *)(BERTH + BERTH_FCW) = 0x37f;
    *(volatile uint32_t *)(BERTH + BERTH_STATE) = ASLEEP;
    for (;;) __asm__ volatile("syscall" : : "a"(HC_SLEEP) : "rcx", "r11", "memory");
}
