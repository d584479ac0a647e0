/* Attacks by a client whose kernel is the attacker's: A to D of the facts that were found about the paper's way, and hostile tables of
 * the processor. In the paper's build they reach the server's kernel; with a domain they are contained. */
#include "monitor.h"

enum { KERNEL_PAGE = PTE_WRITE | PTE_PRESENT, USER_PAGE = PTE_WRITE | PTE_PRESENT | PTE_USER };
static const uint8_t vmfunc[] = {0x0f, 0x01, 0xd4};

/* --- tools --- */

/* Registers and the window, and what the trampoline finds when it returns to the client. */
void attack_again(unsigned ring)
{
    for (int page = 0; page < WINDOW_PAGES; page++) fill(machine.window[page], 0, 4096);
    vcpu_reset(&machine.vcpu, ring, CLIENT_CR3, 0, 0);
    vmwrite(GUEST_CR4, CR4_BASE | CR4_SMEP);
    vmwrite(GUEST_FS_BASE, RESULTS);
    machine.vcpu.registers.rcx = 1;
    policy = (struct policy){.slice = 20000};
    uint64_t *slot = at(&machine.client, G_SLOT), *stack = at(&machine.client, G_USER_STACK + 0x1000);
    slot[SLOT_RSP / 8] = CLIENT_STACK + 0x1000;
    stack[0] = 0x37f00001f80;
    stack[1] = 2;
    stack[8] = (uint64_t)client_report_window;
    invalidate_all();
}

void attack_start(unsigned ring, bool kernel_tables)
{
    link_up(kernel_tables);
    client_reset(client_report);
    attack_again(ring);
}

void plant(uint64_t virtual, const void *code, unsigned length, uint64_t flags)
{
    uint64_t first = virtual & ~0xfffull, last = (virtual + length - 1) & ~0xfffull;
    for (uint64_t page = first;; page = last) {
        uint64_t physical = G_SCRATCH + 4096 + (page == first ? 0 : 4096);
        map(&machine.client, CLIENT_CR3, page, physical, flags);
        for (unsigned byte = 0; byte < length; byte++)
            if (((virtual + byte) & ~0xfffull) == page)
                *(uint8_t *)at(&machine.client, physical + ((virtual + byte) & 0xfff)) = ((const uint8_t *)code)[byte];
        if (page == last) break;
    }
}

void set_instruction(uint64_t rip, uint64_t rsp)
{
    vmwrite(GUEST_RIP, rip);
    vmwrite(GUEST_RSP, rsp);
}

enum canary in_registers(void)
{
    const uint64_t *registers = &machine.vcpu.registers.rax;
    for (unsigned at = 0; at < sizeof machine.vcpu.registers / 8; at++)
        if (canary_of(registers[at]) != CANARIES) return canary_of(registers[at]);
    return CANARIES;
}

/* Whose memory the client has a word of: in a register, in its memory or in the window; CANARIES if nobody's. */
enum canary leaked(const struct outcome *outcome)
{
    if (outcome->done && canary_of(outcome->value) != CANARIES) return canary_of(outcome->value);
    return in_registers() != CANARIES ? in_registers() : canary_in_memory();
}

const char *why(const struct outcome *outcome)
{
    if (outcome->done) return "the client's program ended";
    switch (outcome->reason) {
    case REASON_TRIPLE_FAULT: return "triple fault: the client's VM ends";
    case REASON_EPT_VIOLATION: return outcome->in_domain ? "EPT violation in the domain" : "EPT violation in the client";
    case REASON_VMFUNC: return "exit by VMFUNC";
    case REASON_TIMER: return "end of its slice";
    case REASON_VMCALL:
        if (!outcome->in_domain) return "exception in the client";
        return outcome->vector == 14 ? "page fault, at the stub" : outcome->vector >= 0 ? "exception, at a stub" : "VMCALL in the domain";
    default: return "another exit";
    }
}

/* One line for each attack: what happened, and if that is what this build is expected to do. */
static void verdict(const char *attack, struct outcome outcome, bool whole_falls)
{
    static const char *const owners[] = {"the server's kernel was read", "another tenant's process was read", "the host was read"};
    enum canary found = leaked(&outcome);
    bool unchanged = canaries_unchanged(), succeeded = found != CANARIES || !unchanged;
    const char *what = !succeeded ? "contained" : found != CANARIES ? owners[found] : "the server's kernel was written";
    check(succeeded == (WHOLE && whole_falls), "attack %s: %s%s (%s)", attack, succeeded ? "succeeded: " : "", what, why(&outcome));
    canaries_restore();
}

/* The registers of `copy and return to ring 3`, two functions of the server's kernel; the stack is in the window. */
static void copy_registers(void)
{
    struct registers *r = &machine.vcpu.registers;
    uint64_t *stack = (uint64_t *)((char *)machine.window[0] + (WINDOW_STACK - WINDOW));
    r->rdi = WINDOW_FOUND;
    r->rsi = SERVER_CANARY;
    r->rdx = 64;
    stack[0] = SERVER_KTEXT + SYSRET_OFFSET;
    stack[1] = (uint64_t)trampoline_back;
    stack[2] = 2;
}

/* Where in the server's text this code is. */
static uint64_t in_server_text(const uint8_t *code, unsigned length)
{
    const uint8_t *text = (const uint8_t *)server_at;
    for (int64_t byte = 0; byte + length <= server_end - server_start; byte++) {
        unsigned same = 0;
        while (same < length && text[byte + same] == code[same]) same++;
        if (same == length) return SERVER_TEXT + (uint64_t)byte;
    }
    panic("an instruction is not in the server's text", code[0] << 8 | code[1]);
}

/* --- page tables that the client fills, in the window --- */

static uint64_t *window_page(int page) { return machine.window[page]; }
static uint64_t window_entry(int page) { return machine.window_in_domain[page] | 0x60 | PTE_PRESENT | PTE_WRITE; }

/* Pages 5, 6, 7: the three upper tables; 3 and 2: those of 0x400000 and 0x600000. All in ring 0. */
uint64_t window_tables(void)
{
    static const struct {
        uint64_t virtual;
        int window;
    } own[] = {{WINDOW_CODE, 4}, {WINDOW, 0}, {BERTH, 1}};
    window_page(5)[0] = window_entry(6);
    window_page(6)[0] = window_entry(7);
    window_page(7)[2] = window_entry(3);
    window_page(7)[3] = window_entry(2);
    for (unsigned at = 0; at < 3; at++) window_page(3)[own[at].virtual >> 12 & 511] = window_entry(own[at].window);
    window_page(3)[TRAMPOLINE >> 12 & 511] = in_domain(machine.trampoline) | 0x60 | PTE_PRESENT;
    for (uint64_t page = 0; page < (uint64_t)(server_end - server_start) / 4096; page++)
        window_page(2)[page] = in_domain(at(&machine.server, G_TEXT + page * 4096)) | 0x60 | PTE_PRESENT;
    /* The client's own memory at that address has its usual tables, without the bit of user pages. */
    uint64_t cr3 = machine.window_in_domain[5];
    copy(at(&machine.client, cr3), at(&machine.client, CLIENT_CR3), 4096);
    *(uint64_t *)at(&machine.client, cr3) &= ~(uint64_t)PTE_USER;
    return cr3;
}

void window_target(uint64_t physical, bool as_window)
{
    window_page(3)[as_window ? WINDOW >> 12 & 511 : VIRTUAL_TARGET >> 12 & 511] = physical | 0x60 | PTE_PRESENT | PTE_WRITE;
}

/* By the API server's own code (peek), found at its address, and back through the trampoline. */
struct outcome read_physical(uint64_t physical)
{
    /* mov (%rdi), %rax; ret */
    static const uint8_t code[] = {0x48, 0x8b, 0x07, 0xc3};
    static uint64_t gadget;
    if (!gadget) gadget = in_server_text(code, sizeof code);
    plant(gadget - sizeof vmfunc, vmfunc, sizeof vmfunc, KERNEL_PAGE);
    vmwrite(GUEST_CR3, window_tables());
    window_target(physical, false);
    machine.vcpu.registers.rdi = VIRTUAL_TARGET;
    window_page(4)[0] = (uint64_t)trampoline_handled;
    window_page(1)[BERTH_STATE / 8] = BORROWED;
    ((uint64_t *)at(&machine.client, G_USER_STACK + 0x1000))[8] = (uint64_t)client_report;
    set_instruction(gadget - sizeof vmfunc, WINDOW_CODE);
    return run_client();
}

/* By the trampoline's store of a reply, with the window's address for the target. */
struct outcome write_physical(uint64_t physical)
{
    plant((uint64_t)was_handed_over - sizeof vmfunc, vmfunc, sizeof vmfunc, KERNEL_PAGE);
    vmwrite(GUEST_CR3, window_tables());
    window_target(physical, true);
    machine.vcpu.registers.rbx = 0x666;
    set_instruction((uint64_t)was_handed_over - sizeof vmfunc, WINDOW_CODE);
    return run_client();
}

/* --- the attacks --- */

/* A: in ring 0, onto a function of the server's kernel. B: the tables there are those of user mode. */
static struct outcome onto_kernel_text(bool kernel_tables)
{
    attack_start(0, kernel_tables);
    plant(SERVER_KTEXT + COPY_OFFSET - sizeof vmfunc, vmfunc, sizeof vmfunc, KERNEL_PAGE);
    copy_registers();
    set_instruction(SERVER_KTEXT + COPY_OFFSET - sizeof vmfunc, WINDOW_STACK);
    return run_client();
}

/* Code in the window that reads VIRTUAL_TARGET and returns: RBX is the CR3 of tables in the window, RDX the client's. */
static void code_in_window(void)
{
    static const uint8_t code[] = {
        0x0f, 0x22, 0xdb,                   /* mov %rbx, %cr3 */
        0x48, 0x8b, 0x2f,                   /* mov (%rdi), %rbp */
        0x0f, 0x22, 0xda,                   /* mov %rdx, %cr3 */
        0x31, 0xc0, 0x31, 0xc9,             /* xor %eax, %eax; xor %ecx, %ecx */
        0x0f, 0x01, 0xd4,                   /* vmfunc */
        0x48, 0x89, 0xeb,                   /* mov %rbp, %rbx */
        0xb8, HC_DONE, 0, 0, 0,             /* mov $HC_DONE, %eax */
        0x0f, 0x01, 0xc1,                   /* vmcall */
    };
    uint8_t both[sizeof vmfunc + sizeof code];
    copy(both, vmfunc, sizeof vmfunc);
    copy(both + sizeof vmfunc, code, sizeof code);
    copy(machine.window[4], code, sizeof code);
    plant(WINDOW_CODE - sizeof vmfunc, both, sizeof both, KERNEL_PAGE);
    struct registers *r = &machine.vcpu.registers;
    r->rbx = window_tables();
    r->rdx = vmread(GUEST_CR3);
    r->rdi = VIRTUAL_TARGET;
    window_target(WHOLE ? G_CANARY : in_domain(machine.canary[CANARY_SERVER_KERNEL]), false);
    set_instruction(WINDOW_CODE - sizeof vmfunc, 0);
}

/* C: SMEP off, so that pages of user mode are code of ring 0. */
static struct outcome without_smep(void)
{
    attack_start(0, false);
    vmwrite(GUEST_CR4, CR4_BASE);
    code_in_window();
    return run_client();
}

/* D: SMEP on, and CR3 is a page that the client fills. */
static struct outcome own_tables(void)
{
    attack_start(0, false);
    code_in_window();
    machine.vcpu.registers.rdx = machine.vcpu.registers.rbx;
    vmwrite(GUEST_CR3, machine.vcpu.registers.rbx);
    return run_client();
}

/* E: D with the API server's own code, for what is not executable in the window. */
static struct outcome own_tables_server_code(uint64_t physical)
{
    attack_start(0, false);
    return read_physical(physical);
}

static struct outcome own_tables_write(uint64_t physical)
{
    attack_start(0, false);
    return write_physical(physical);
}

/* F: LSTAR is a function of the server's kernel, and the client jumps onto a SYSCALL of the server. Ring 3. */
static struct outcome hostile_lstar(uint64_t lstar)
{
    attack_start(3, true);
    uint64_t instruction = in_server_text((const uint8_t[]){0x0f, 0x05}, 2);
    plant(instruction - sizeof vmfunc, vmfunc, sizeof vmfunc, USER_PAGE);
    copy_registers();
    wrmsr(0xc0000082, lstar);
    set_instruction(instruction - sizeof vmfunc, WINDOW_STACK);
    return run_client();
}

/* G: IDT, GDT and TSS are in the window; an exception of the server's code enters a function of its kernel. Ring 3. */
static struct outcome hostile_tables(bool smep)
{
    attack_start(3, true);
    vmwrite(GUEST_CR4, CR4_BASE | (smep ? CR4_SMEP : 0));
    uint64_t *idt = window_page(1), *gdt = window_page(2), handler = smep ? SERVER_KTEXT + COPY_OFFSET : in_server_text((const uint8_t[]){0x48, 0x8b}, 2);
    for (int vector = 0; vector < 256; vector++) {
        idt[2 * vector] = (handler & 0xffff) | 0x10ull << 16 | 0x8e00ull << 32 | (handler >> 16 & 0xffff) << 48;
        idt[2 * vector + 1] = handler >> 32;
    }
    gdt[2] = 0x00af9b000000ffff;
    *(uint64_t *)((char *)machine.window[3] + 4) = WINDOW_CODE;
    vmwrite(GUEST_IDTR_BASE, WINDOW + 0x1000);
    vmwrite(GUEST_GDTR_BASE, WINDOW + 0x2000);
    vmwrite(GUEST_TR_BASE, WINDOW + 0x3000);
    uint64_t instruction = in_server_text((const uint8_t[]){0x0f, 0x0b}, 2);
    plant(instruction - sizeof vmfunc, vmfunc, sizeof vmfunc, USER_PAGE);
    copy_registers();
    set_instruction(instruction - sizeof vmfunc, WINDOW_STACK);
    return run_client();
}

/* A process whose tables nobody registered calls as the others do. */
static struct outcome unregistered(void)
{
    attack_start(3, false);
    vmwrite(GUEST_CR3, STRANGER_CR3);
    machine.vcpu.registers.rdi = ADD;
    set_instruction((uint64_t)trampoline, CLIENT_STACK + 0x2000 - 8);
    return run_client();
}

/* The client's kernel writes what it may only read; tables of its own make the page writable. */
static struct outcome write_own(uint64_t virtual)
{
    static const uint8_t store[] = {0x48, 0x89, 0x07};
    attack_start(0, false);
    *entry_of(&machine.client, CLIENT_CR3, virtual) |= PTE_WRITE;
    plant(SCRATCH, store, sizeof store, KERNEL_PAGE);
    machine.vcpu.registers.rdi = virtual;
    set_instruction(SCRATCH, 0);
    return run_client();
}

/* A context of ring 0 with an address of the kernel and I/O rights is handed over as one of the server's user mode. */
static void hostile_hand_over(void)
{
    attack_start(0, false);
    policy.hand_over = true;
    plant(SERVER_KTEXT + COPY_OFFSET - sizeof vmfunc, vmfunc, sizeof vmfunc, KERNEL_PAGE);
    copy_registers();
    vmwrite(GUEST_RFLAGS, 0x3002);
    *(uint32_t *)at(&machine.server, G_BERTH + BERTH_STATE) = BORROWED;
    set_instruction(SERVER_KTEXT + COPY_OFFSET - sizeof vmfunc, WINDOW_STACK);
    struct outcome outcome = run_client();
    check(server_last_fault.vector == 14 && server_last_fault.rip < 1ull << 47 && !(server_last_fault.rflags & 0x3000) && server_last_fault.ring == 3,
          "a hostile context of ring 0 is handed over in ring 3, without I/O rights, in the lower half (%lx)", server_last_fault.rip);
    verdict("H: a hostile context that is handed over", outcome, false);
    server_start_up();
}

void attacks(void)
{
    verdict("A: ring 0, SMEP, onto the server's kernel", onto_kernel_text(true), true);
    verdict("B: the same, the tables there have user pages only", onto_kernel_text(false), false);
    verdict("C: ring 0, SMEP off, code in the window", without_smep(), true);
    verdict("D: ring 0, SMEP, CR3 = a page of the window", own_tables(), true);
    verdict("E: the same with code of the API server", own_tables_server_code(G_CANARY), true);
    verdict("E: the same at another tenant's process", own_tables_server_code(G_OTHER), true);
    verdict("E: the same, a write", own_tables_write(G_CANARY), true);
    verdict("F: LSTAR = a function of the server's kernel", hostile_lstar(SERVER_KTEXT + COPY_OFFSET), true);
    verdict("F: LSTAR = a user page of the lower half", hostile_lstar(SERVER_TEXT), false);
    verdict("G: IDT, GDT and TSS in the window", hostile_tables(true), true);
    verdict("G: the same, SMEP off, handlers in user pages", hostile_tables(false), false);
    verdict("an unregistered process", unregistered(), false);
    verdict("a write to the trampoline", write_own(TRAMPOLINE), false);
    verdict("a write to the table of handlers", write_own(TABLE), false);
    if (!WHOLE) hostile_hand_over();
}
