/* What the monitor does at exits: of the client in its own memory, in the domain (hand-over), and of the server's thread. */
#include "monitor.h"

/* Ticks that no test needs. */
enum { FOREVER = 2000000000, SERVER_SLICE = 200000 };

struct policy policy;
struct counts counts;

/* --- the berth, as the host sees it --- */

static uint32_t *berth_state(void) { return (uint32_t *)at(&machine.server, G_BERTH + BERTH_STATE); }

/* --- the server's virtual CPU: it runs only to start and for what was handed over --- */

static void answer(struct vcpu *vcpu, uint64_t rax)
{
    vcpu->registers.rax = rax;
    vmwrite(GUEST_RIP, vmread(GUEST_RIP) + vmread(EXIT_INSTRUCTION_LENGTH));
}

static void emulate_cpuid(struct vcpu *vcpu)
{
    struct registers *r = &vcpu->registers;
    uint32_t eax = (uint32_t)r->rax, ebx, ecx = (uint32_t)r->rcx, edx;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    r->rbx = ebx, r->rcx = ecx, r->rdx = edx;
    answer(vcpu, eax);
}

/* Its kernel's stub of a vector: the exception of the API server that it would make a signal of. */
struct fault server_last_fault;

static void server_fault(const struct vcpu *server)
{
    const uint64_t *frame = at(server->own, G_STACK + (vmread(GUEST_RSP) & 0xfff));
    int vector = (int)(vmread(GUEST_RIP) - SERVER_KTEXT - VECTORS_OFFSET) / 4;
    bool code = vector == 8 || (vector >= 10 && vector <= 14) || vector == 17;
    server_last_fault = (struct fault){vector, frame[code], frame[code + 2], (unsigned)frame[code + 1] & 3};
}

/* Runs the server's thread until it sleeps; false if its own kernel ends the session: an exception, or it did not sleep in time. */
static bool run_server(void)
{
    struct vcpu *server = &machine.server_vcpu;
    slice(SERVER_SLICE);
    for (;;) {
        counts.server_entries++;
        uint32_t reason = vcpu_run(server);
        uint64_t offset = vmread(GUEST_RIP) - SERVER_KTEXT;
        if (reason == REASON_CPUID) {
            emulate_cpuid(server);
        } else if (reason == REASON_VMCALL && offset == ENTRY_OFFSET) {
            if (server->registers.rax == HC_SLEEP) return true;
            answer(server, 4242);
        } else if (reason == REASON_VMCALL && offset - VECTORS_OFFSET < 1024) {
            server_fault(server);
            return false;
        } else {
            /* A context of a client may be anything; the kernel would kill its thread. */
            server_last_fault = (struct fault){-1, vmread(GUEST_RIP), vmread(GUEST_RFLAGS), vmread(GUEST_SS_RIGHTS) >> 5 & 3};
            return false;
        }
    }
}

void server_start_up(void)
{
    vcpu_reset(&machine.server_vcpu, 0, SERVER_CR3, SERVER_KTEXT, 0);
    machine.server_vcpu.registers.rcx = (uint64_t)server_main;
    machine.server_vcpu.registers.r11 = 2;
    vmwrite(GUEST_RSP, SERVER_STACK + 4 * 4096);
    if (!run_server()) panic("the server did not start", server_last_fault.rip);
}

/* --- a context that leaves the domain --- */

struct context {
    uint64_t rip, rsp, rflags, fs;
    int vector;     /* of the stub, 256: system call, -1: an exit at the instruction itself */
};

/* Where the thread was: an interrupt's frame is on the stubs' own stack, SYSCALL leaves it in registers. */
static struct context context_of(void)
{
    struct context context = {vmread(GUEST_RIP), vmread(GUEST_RSP), vmread(GUEST_RFLAGS), vmread(GUEST_FS_BASE), -1};
    uint64_t offset = context.rip - CLIENT_KTEXT;
    if (WHOLE) return context;
    if (offset == ENTRY_OFFSET) {
        context.rip = machine.vcpu.registers.rcx - 2;
        context.rflags = machine.vcpu.registers.r11;
        context.vector = 256;
    } else if (offset >= VECTORS_OFFSET && offset < VECTORS_OFFSET + 1024) {
        context.vector = (int)(offset - VECTORS_OFFSET) / 4;
        uint64_t *frame = (uint64_t *)((char *)machine.stub_stack + 4096 - 40);
        context.rip = frame[0];
        context.rflags = frame[2];
        context.rsp = frame[3];
    }
    return context;
}

/* The client goes on in the trampoline, in ring 3 and in its own memory. */
static void resume_at(char *label)
{
    vmwrite(EPT_POINTER, eptp(&machine.client));
    vmwrite(GUEST_CR3, CLIENT_CR3);
    ring_3();
    vmwrite(GUEST_RIP, (uint64_t)label);
    vmwrite(GUEST_RFLAGS, 2);
}

extern char trampoline_claim_tested[], trampoline_restore[], trampoline_released[];

/* If this context has claimed the berth. BORROWED alone does not say so: another thread may have it while this one finds that out,
 * so that in the trampoline the instruction decides. At the test of the claim its flag does. */
static bool claimed(const struct context *context)
{
    if (*berth_state() != BORROWED) return false;
    if (context->rip - TRAMPOLINE >= 4096) return true;
    if (context->rip == (uint64_t)trampoline_claim_tested) return context->rflags & 1 << 6;
    return context->rip > (uint64_t)trampoline_claim_tested && context->rip < (uint64_t)trampoline_released;
}

/* The berth's thread goes on at that very instruction, under its own kernel; ring 3, harmless flags, an address of the lower half. */
static bool continue_in_server(const struct context *context)
{
    struct registers registers = machine.vcpu.registers;
    *berth_state() = HANDED_OVER;
    counts.handed_over++;
    vcpu_reset(&machine.server_vcpu, 3, SERVER_CR3, context->rip & 0x7fffffffffff, context->rsp);
    machine.server_vcpu.registers = registers;
    vmwrite(GUEST_RFLAGS, (context->rflags & 0xcd5) | 2);
    vmwrite(GUEST_FS_BASE, context->fs);
    bool slept = run_server();
    vcpu_load(&machine.vcpu);
    if (!slept) *berth_state() = ASLEEP;
    return slept;
}

/* Grants what the exit says was missing, if the process has it. */
static void grant_missing(uint32_t reason, int vector)
{
    uint64_t address = vmread(0x640a);
    if (vector == 14) __asm__ volatile("mov %%cr2, %0" : "=r"(address));
    if (policy.grants && (vector == 14 || reason == REASON_EPT_VIOLATION)) grant(address & ~0xfffull);
}

static void hand_over(uint32_t reason)
{
    struct context context = context_of();
    struct registers *r = &machine.vcpu.registers;
    if (context.vector == 256) r->rcx = 0, r->r11 = 0;
    if (claimed(&context)) {
        grant_missing(reason, context.vector);
        continue_in_server(&context);
        resume_at(trampoline_resume);
    } else if (context.rip >= (uint64_t)trampoline_released && context.rip < (uint64_t)trampoline_restore) {
        /* The result is there, and the berth released: only the way back was missing. */
        if (context.rip < (uint64_t)trampoline_back) r->r14 = RETURNED;
        resume_at(trampoline_restore);
    } else {
        /* The berth was not claimed yet. */
        r->r14 = REFUSED;
        r->rbx = 0;
        resume_at(trampoline_restore);
    }
}

/* --- revocation --- */

enum { TRACED = 65536 };
static uint8_t trace[TRACED];
static unsigned traced;
static bool trace_overflow;

/* Each step notes itself, where it is made, while a page is revoked. */
static bool tracing;

void note(enum event event)
{
    if (!tracing) return;
    if (traced < TRACED) trace[traced++] = event;
    else trace_overflow = true;
}

bool revocations_in_order(uint64_t *seen)
{
    *seen = traced / 4;
    for (unsigned at = 0; at < traced; at++)
        if (trace[at] != at % 4) return false;
    return !trace_overflow && traced % 4 == 0;
}

static void evict_borrower(void)
{
    if (vmread(EPT_POINTER) != eptp(&machine.client)) hand_over(REASON_TIMER);
    note(EVENT_BORROWERS_OUT);
}

void revoke_secrets(void)
{
    uint64_t *entry = entry_of(&machine.domain, CLIENT_CR3, SERVER_SECRETS);
    tracing = true;
    if (entry && *entry) ept_zap(&machine.domain, *entry & 0xffffffffff000);
    invalidate_all();
    evict_borrower();
    note(EVENT_ACKNOWLEDGED);
    tracing = false;
    /* Only now may the page be used for anything else: two take turns. */
    static uint64_t *spare;
    uint64_t *old = at(&machine.server, G_SECRETS);
    if (!spare) spare = page_alloc();
    spare[0] = old[0] + 1;
    ept_map(&machine.server, G_SECRETS, spare, EPT_READ | EPT_WRITE | EPT_EXECUTE);
    invalidate_all();
    old[0] = 0xdead;
    spare = old;
}

/* --- the client's exits --- */

static void describe(struct outcome *outcome, uint32_t reason)
{
    outcome->reason = reason;
    outcome->qualification = vmread(EXIT_QUALIFICATION);
    outcome->rip = vmread(GUEST_RIP);
    outcome->in_domain = vmread(EPT_POINTER) != eptp(&machine.client);
    outcome->ring = vmread(GUEST_SS_RIGHTS) >> 5 & 3;
    outcome->vector = -1;
    if (reason != REASON_VMCALL) return;
    uint64_t offset = outcome->rip - CLIENT_KTEXT;
    if (offset == ENTRY_OFFSET) outcome->vector = 256;
    else if (offset - VECTORS_OFFSET < 1024) outcome->vector = (int)(offset - VECTORS_OFFSET) / 4;
}

/* An exit of the client in its own memory; false if its run ends with it. */
static bool own_exit(uint32_t reason, struct outcome *outcome)
{
    struct registers *r = &machine.vcpu.registers;
    if (reason == REASON_CPUID) return emulate_cpuid(&machine.vcpu), true;
    if (reason != REASON_VMCALL || outcome->vector >= 0) return false;
    switch ((uint32_t)r->rax) {
    case HC_DONE:
        outcome->done = true;
        outcome->value = r->rbx;
        return false;
    case HC_EXITS:
        return answer(&machine.vcpu, counts.exits), true;
    case HC_SLICE:
        slice(r->rbx);
        return answer(&machine.vcpu, 0), true;
    case HC_REVOKE:
        revoke_secrets();
        return answer(&machine.vcpu, 0), true;
    default:
        return false;
    }
}

/* An exit in the domain; false if the client's run ends with it. */
static bool domain_exit(uint32_t reason)
{
    if (!policy.hand_over) return false;
    hand_over(reason);
    if (policy.once) policy.hand_over = false;
    return true;
}

struct outcome run_client(void)
{
    struct outcome outcome = {0};
    vcpu_load(&machine.vcpu);
    slice(policy.slice ? policy.slice : FOREVER);
    for (;;) {
        uint32_t reason = vcpu_run(&machine.vcpu);
        counts.exits++;
        counts.by_reason[reason & 63]++;
        if (reason == REASON_VMCALL && policy.exits_switch && machine.vcpu.registers.rax == HC_SWITCH) {
            /* The shortest way that an exit can have. */
            bool own = vmread(EPT_POINTER) == eptp(&machine.client);
            vmwrite(EPT_POINTER, own ? machine.list[1] : eptp(&machine.client));
            answer(&machine.vcpu, 0);
            continue;
        }
        describe(&outcome, reason);
        if (reason == REASON_TIMER && policy.hand_over) {
            slice(policy.at_slice ? SERVER_SLICE : FOREVER);
            if (policy.at_slice) policy.at_slice(), policy.at_slice = 0;
            if (policy.revoke_at_slice) revoke_secrets();
            else if (outcome.in_domain) hand_over(reason);
            continue;
        }
        if (!(outcome.in_domain ? domain_exit(reason) : own_exit(reason, &outcome))) return outcome;
    }
}
