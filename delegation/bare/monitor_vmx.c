/* VMX: the root's state, virtual CPUs, entries and exits. */
#include "monitor.h"

uint32_t vmx_enter(struct registers *registers, bool launched);
extern char vmx_exit[], host_vectors[];

/* Fields that only this file writes. */
enum {
    IO_AND_MSR_BITMAP = 0x2004, LINK_POINTER = 0x2800, GUEST_EFER = 0x2806, HOST_EFER = 0x2c02, PIN_CONTROLS = 0x4000,
    PROCESSOR_CONTROLS = 0x4002, EXCEPTIONS = 0x4004, EXIT_CONTROLS = 0x400c, ENTRY_CONTROLS = 0x4012, SECONDARY_CONTROLS = 0x401e,
    INSTRUCTION_ERROR = 0x4400, GUEST_ES = 0x0800, GUEST_ES_LIMIT = 0x4800, GUEST_ES_RIGHTS = 0x4814, GUEST_ES_BASE = 0x6806,
    GUEST_GDTR_LIMIT = 0x4810, GUEST_IDTR_LIMIT = 0x4812, GUEST_INTERRUPTIBILITY = 0x4824, GUEST_ACTIVITY = 0x4826,
    GUEST_PENDING = 0x6822, HOST_ES = 0x0c00, HOST_CR0 = 0x6c00, HOST_CR3 = 0x6c02, HOST_CR4 = 0x6c04, HOST_FS_BASE = 0x6c06,
    HOST_TR_BASE = 0x6c0a, HOST_GDTR_BASE = 0x6c0c, HOST_IDTR_BASE = 0x6c0e, HOST_RIP = 0x6c16,
};
enum { CS = 1, SS = 2, LDTR = 6, TR = 7 };
enum { LSTAR = 0xc0000082, STAR = 0xc0000081, SYSCALL_MASK = 0xc0000084, KERNEL_GS_BASE = 0xc0000102 };

static struct {
    uint16_t limit;
    uint64_t base;
} __attribute__((packed)) host_idtr, host_gdtr;
static uint64_t host_idt[64], host_gdt[8];
static uint8_t host_tss[104], msr_bitmap[4096] __attribute__((aligned(4096)));
static unsigned timer_shift;
/* The bit of CR4, where the processor has it. */
static uint64_t smap;

uint64_t rdmsr(uint32_t number)
{
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(number));
    return (uint64_t)high << 32 | low;
}

void wrmsr(uint32_t number, uint64_t value)
{
    __asm__ volatile("wrmsr" : : "c"(number), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)));
}

uint64_t vmread(uint64_t field)
{
    uint64_t value;
    __asm__ volatile("vmread %1, %0" : "=r"(value) : "r"(field) : "cc");
    return value;
}

void vmwrite(uint64_t field, uint64_t value)
{
    uint8_t failed;
    __asm__ volatile("vmwrite %2, %1; setbe %0" : "=qm"(failed) : "r"(field), "r"(value) : "cc");
    if (failed) panic("a field of the VMCS cannot be written", field);
}

/* What a control must and may have: the low half of its MSR must be set, the high half may. */
static void control(uint64_t field, uint32_t msr, uint32_t wanted)
{
    uint64_t allowed = rdmsr(msr);
    uint32_t value = (wanted | (uint32_t)allowed) & (uint32_t)(allowed >> 32);
    if (wanted & ~value) panic("the processor lacks a control of VMX", (uint64_t)msr << 32 | (wanted & ~value));
    vmwrite(field, value);
}

static void host_tables(void)
{
    for (int vector = 0; vector < 32; vector++) {
        uint64_t handler = (uint64_t)host_vectors + 8 * vector;
        host_idt[2 * vector] = (handler & 0xffff) | 0x10ull << 16 | 0x8e00ull << 32 | (handler >> 16 & 0xffff) << 48;
    }
    host_gdt[2] = 0x00af9b000000ffff;
    host_gdt[3] = 0x00cf93000000ffff;
    uint64_t base = (uint64_t)host_tss;
    host_gdt[4] = 0x67 | (base & 0xffffff) << 16 | 0x89ull << 40 | (base >> 24 & 0xff) << 56;
    host_idtr.limit = sizeof host_idt - 1;
    host_idtr.base = (uint64_t)host_idt;
    host_gdtr.limit = sizeof host_gdt - 1;
    host_gdtr.base = (uint64_t)host_gdt;
    __asm__ volatile("lgdt %0; lidt %1; ltr %w2" : : "m"(host_gdtr), "m"(host_idtr), "r"(0x20));
}

void vmx_on(void)
{
    host_tables();
    uint64_t control = rdmsr(0x3a);
    if (!(control & 1)) wrmsr(0x3a, control | 5);
    __asm__ volatile("mov %0, %%cr4" : : "r"((uint64_t)CR4_BASE));
    uint32_t *region = page_alloc();
    region[0] = (uint32_t)rdmsr(0x480) & 0x7fffffff;
    uint64_t address = (uint64_t)region;
    uint8_t failed;
    __asm__ volatile("vmxon %1; setbe %0" : "=qm"(failed) : "m"(address) : "cc", "memory");
    if (failed) panic("VMXON failed", rdmsr(0x3a));
    if (!(rdmsr(0x491) & 1)) panic("the processor lacks EPTP switching", rdmsr(0x491));
    timer_shift = rdmsr(0x485) & 31;
    uint32_t eax = 7, ebx, ecx = 0, edx;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    smap = ebx & 1 << 20 ? CR4_SMAP : 0;
    /* As KVM does: a guest reaches its FS and GS bases and its entry of system calls, and no other MSR. */
    static const uint32_t own[] = {LSTAR, STAR, 0xc0000083, SYSCALL_MASK, 0xc0000100, 0xc0000101, KERNEL_GS_BASE};
    fill(msr_bitmap, 0xff, 4096);
    for (unsigned at = 0; at < sizeof own / sizeof *own; at++) {
        unsigned bit = own[at] & 0x1fff;
        msr_bitmap[1024 + bit / 8] &= (uint8_t)~(1 << bit % 8);
        msr_bitmap[3072 + bit / 8] &= (uint8_t)~(1 << bit % 8);
    }
}

static uint64_t host_cr(int number)
{
    uint64_t value;
    if (number == 0) __asm__ volatile("mov %%cr0, %0" : "=r"(value));
    else if (number == 3) __asm__ volatile("mov %%cr3, %0" : "=r"(value));
    else __asm__ volatile("mov %%cr4, %0" : "=r"(value));
    return value;
}

static void host_state(void)
{
    for (int segment = 0; segment < 6; segment++) vmwrite(HOST_ES + 2 * segment, segment == CS ? 0x10 : segment <= 3 ? 0x18 : 0);
    vmwrite(HOST_ES + 12, 0x20);
    vmwrite(HOST_CR0, host_cr(0));
    vmwrite(HOST_CR3, host_cr(3));
    vmwrite(HOST_CR4, host_cr(4));
    vmwrite(HOST_TR_BASE, (uint64_t)host_tss);
    vmwrite(HOST_GDTR_BASE, (uint64_t)host_gdt);
    vmwrite(HOST_IDTR_BASE, (uint64_t)host_idt);
    vmwrite(HOST_FS_BASE, 0);
    vmwrite(HOST_EFER, rdmsr(0xc0000080));
    vmwrite(HOST_RIP, (uint64_t)vmx_exit);
}

void vcpu_load(struct vcpu *vcpu)
{
    static struct vcpu *loaded;
    if (loaded == vcpu) return;
    if (loaded) loaded->lstar = rdmsr(LSTAR);
    loaded = vcpu;
    uint64_t address = (uint64_t)vcpu->vmcs;
    __asm__ volatile("vmptrld %0" : : "m"(address) : "cc", "memory");
    wrmsr(LSTAR, vcpu->lstar);
}

void vcpu_make(struct vcpu *vcpu, struct space *own)
{
    static uint16_t vpids;
    vcpu->own = own;
    vcpu->vmcs = page_alloc();
    *(uint32_t *)vcpu->vmcs = (uint32_t)rdmsr(0x480) & 0x7fffffff;
    uint64_t address = (uint64_t)vcpu->vmcs;
    __asm__ volatile("vmclear %0" : : "m"(address) : "cc", "memory");
    vcpu_load(vcpu);
    control(PIN_CONTROLS, 0x48d, 1 | 1 << 3 | 1 << 6);                                    /* interrupts, NMIs, the timer */
    control(PROCESSOR_CONTROLS, 0x48e, 1 << 7 | 1 << 10 | 1 << 24 | 1 << 28 | 1u << 31);  /* HLT, MWAIT, I/O, MSR bitmap */
    control(SECONDARY_CONTROLS, 0x48b, 1 << 1 | 1 << 5 | 1 << 6 | 1 << 13);               /* EPT, VPID, WBINVD, VMFUNC */
    control(EXIT_CONTROLS, 0x48f, 1 << 2 | 1 << 9 | 1 << 20 | 1 << 21);                   /* debug registers, 64 bits, EFER */
    control(ENTRY_CONTROLS, 0x490, 1 << 2 | 1 << 9 | 1 << 15);
    vmwrite(EXCEPTIONS, 1 << 1 | 1 << 17 | 1 << 18);                                      /* debug, alignment, machine check */
    vmwrite(IO_AND_MSR_BITMAP, (uint64_t)msr_bitmap);
    vmwrite(VPID, ++vpids);
    vmwrite(LINK_POINTER, ~0ull);
    vmwrite(VM_FUNCTION_CONTROL, 0);
    host_state();
    wrmsr(STAR, 0x10ull << 32 | 0x20ull << 48);
    wrmsr(SYSCALL_MASK, 0x47700);
}

/* The segments that a kernel gives to its own code and to programs. */
static void segments(unsigned ring)
{
    for (int segment = 0; segment < 8; segment++) {
        uint32_t selector = segment == CS ? 0x10 : 0x18, rights = segment == CS ? 0xa09b : 0xc093;
        if (ring == 3) selector = segment == CS ? 0x33 : 0x2b, rights |= 3 << 5;
        if (segment == TR) selector = 0x40, rights = 0x8b;
        if (segment == LDTR) selector = 0, rights = 0x10000;
        vmwrite(GUEST_ES + 2 * segment, selector);
        vmwrite(GUEST_ES_LIMIT + 2 * segment, segment == TR ? 0x67 : segment == LDTR ? 0 : 0xffffffff);
        vmwrite(GUEST_ES_RIGHTS + 2 * segment, rights);
        vmwrite(GUEST_ES_BASE + 2 * segment, segment == TR ? KERNEL_TSS : 0);
    }
}

void vcpu_reset(struct vcpu *vcpu, unsigned ring, uint64_t cr3, uint64_t rip, uint64_t rsp)
{
    vcpu_load(vcpu);
    fill(&vcpu->registers, 0, sizeof vcpu->registers);
    segments(ring);
    vmwrite(EPT_POINTER, eptp(vcpu->own));
    vmwrite(GUEST_CR0, 0x80050033);
    vmwrite(GUEST_CR3, cr3);
    vmwrite(GUEST_CR4, CR4_BASE | CR4_SMEP | smap);
    vmwrite(GUEST_EFER, 0xd01);
    vmwrite(GUEST_GDTR_BASE, KERNEL_GDT);
    vmwrite(GUEST_GDTR_LIMIT, 0x7f);
    vmwrite(GUEST_IDTR_BASE, KERNEL_IDT);
    vmwrite(GUEST_IDTR_LIMIT, 0xfff);
    vmwrite(GUEST_DR7, 0x400);
    vmwrite(GUEST_INTERRUPTIBILITY, 0);
    vmwrite(GUEST_ACTIVITY, 0);
    vmwrite(GUEST_PENDING, 0);
    vmwrite(GUEST_RFLAGS, 2);
    vmwrite(GUEST_RIP, rip);
    vmwrite(GUEST_RSP, rsp);
    vmwrite(TIMER_VALUE, 0xffffffff);
}

/* Code and stack segments of a program, after an interrupt may have made SS NULL. */
void ring_3(void)
{
    vmwrite(GUEST_CS, 0x33);
    vmwrite(GUEST_CS_RIGHTS, 0xa0fb);
    vmwrite(GUEST_ES_LIMIT + 2 * CS, 0xffffffff);
    vmwrite(GUEST_ES_BASE + 2 * CS, 0);
    vmwrite(GUEST_SS, 0x2b);
    vmwrite(GUEST_SS_RIGHTS, 0xc0f3);
    vmwrite(GUEST_ES_LIMIT + 2 * SS, 0xffffffff);
    vmwrite(GUEST_ES_BASE + 2 * SS, 0);
}

/* Translations of all extended page tables and of all virtual CPUs. */
void invalidate_all(void)
{
    uint64_t descriptor[2] = {0, 0};
    __asm__ volatile("invept %0, %1" : : "m"(descriptor), "r"(2ull) : "cc", "memory");
    __asm__ volatile("invvpid %0, %1" : : "m"(descriptor), "r"(2ull) : "cc", "memory");
    note(EVENT_INVEPT);
}

void slice(uint64_t ticks)
{
    uint64_t value = ticks >> timer_shift;
    vmwrite(TIMER_VALUE, value > 0xffffffff ? 0xffffffff : value);
}

uint32_t vcpu_run(struct vcpu *vcpu)
{
    vcpu->entries++;
    if (vmx_enter(&vcpu->registers, vcpu->launched)) panic("VM entry failed", vmread(INSTRUCTION_ERROR));
    vcpu->launched = true;
    uint32_t reason = (uint32_t)vmread(EXIT_REASON);
    if (reason >> 31) panic("VM entry failed by the guest's state", reason);
    return reason;
}
