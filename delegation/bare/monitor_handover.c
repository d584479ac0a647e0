/* Contexts that leave the domain go on in the server's own thread; pages are granted at the first miss, and revoked. */
#include "client.h"
#include "monitor.h"

static struct results *results(void) { return at(&machine.client, G_RESULTS); }

/* What the API server's process maps beyond what the domain starts with. */
static void withhold(uint64_t virtual)
{
    uint64_t *entry = entry_of(&machine.domain, CLIENT_CR3, virtual);
    ept_zap(&machine.domain, *entry & 0xffffffffff000);
    invalidate_all();
}

/* One call of a handler by the client's program. */
static struct outcome call(uint64_t handler, uint64_t argument)
{
    client_reset(client_call);
    machine.vcpu.registers.rdi = handler;
    machine.vcpu.registers.rsi = argument;
    fill(&counts, 0, sizeof counts);
    ((uint64_t *)machine.window[0])[WINDOW_REPLIES / 8] = 0;
    return run_client();
}

/* A cause, and the result that the lane would have: it is handed over once. */
static void expect(const char *cause, uint64_t handler, uint64_t argument, uint64_t result)
{
    struct outcome outcome = call(handler, argument);
    struct results *r = results();
    bool good = outcome.done && outcome.value == result && counts.handed_over == 1 && r->statuses[WAIT_ON_LANE] == 1 && r->fs_before == r->fs_after;
    check(good, "%s: handed over once, the server's thread finishes (%lx, exit %u at %lx)", cause, outcome.value, outcome.reason, outcome.rip);
}

/* A cause that is the API server's own fault: its kernel gets the exception at the instruction. */
static void expect_fault(const char *cause, uint64_t handler, int vector, const uint8_t *code, unsigned length)
{
    struct outcome outcome = call(handler, 0);
    uint64_t rip = server_last_fault.rip;
    bool there = rip - SERVER_TEXT < 4096;
    for (unsigned byte = 0; there && byte < length; byte++) there = ((uint8_t *)at(&machine.server, G_TEXT + rip - SERVER_TEXT))[byte] == code[byte];
    check(outcome.done && there && server_last_fault.vector == vector && counts.handed_over == 1,
          "%s: exception %u in the server's own kernel, the client continues", cause, (unsigned)server_last_fault.vector);
    server_start_up();
    link_up(false);
}

static void causes(void)
{
    expect("SYSCALL", DO_SYSCALL, 1, 4243);
    expect("CPUID", DO_CPUID, 0, 0x756e6547);
    withhold(SERVER_SECRETS);
    expect("a page that is not in the domain", PEEK, SERVER_SECRETS, 1);
    struct outcome outcome = call(PEEK, SERVER_SECRETS);
    check(outcome.value == 1 && counts.handed_over == 0 && results()->statuses[RETURNED] == 1, "the page is there for the next call");
    expect_fault("UD2", DO_UD2, 6, (const uint8_t *)"\x0f\x0b", 2);
    expect_fault("INT 0x80", DO_INT, 13, (const uint8_t *)"\xcd\x80", 2);
    expect_fault("a page that the server lacks", DO_FAULT, 14, (const uint8_t *)"\x48\x8b\x07", 3);
}

/* Interrupts of the client after each number of ticks: before, at each instruction of the call in the domain, and after it. */
static void interrupts(void)
{
    static const uint64_t handlers[] = {COUNT, READ_FS, DO_SYSCALL};
    enum { ROUNDS = 250 };
    uint64_t wrong = 0, handed_over = 0, refused = 0, replies = 0, waited = 0;
    bool done = true;
    for (unsigned at = 0; at < 3; at++) {
        struct outcome outcome;
        client_reset(client_interrupted);
        results()->fs_before = RESULTS;
        machine.vcpu.registers.rdi = handlers[at];
        machine.vcpu.registers.rsi = ROUNDS;
        fill(&counts, 0, sizeof counts);
        ((uint64_t *)machine.window[0])[WINDOW_REPLIES / 8] = 0;
        outcome = run_client();
        done &= outcome.done;
        wrong += outcome.value;
        handed_over += counts.handed_over;
        refused += results()->statuses[REFUSED];
        replies += results()->replies;
        waited += results()->statuses[WAIT_ON_LANE];
    }
    print("figure: %u calls, each interrupted once: %lu handed over, %lu before the berth was claimed\n", 3 * ROUNDS, handed_over, refused);
    check(done && wrong == 0, "%lu of %u interrupted calls have a wrong result, or were executed twice", wrong, 3 * ROUNDS);
    check(handed_over == replies && replies == waited && handed_over > 60 && refused > 3, "each call that was handed over has one reply");
}

/* What the client set before the switch does not reach the handler. */
static void states(void)
{
    client_reset(client_state);
    /* Alignment checks of ring 3. */
    vmwrite(GUEST_CR0, vmread(GUEST_CR0) | 1 << 18);
    fill(&counts, 0, sizeof counts);
    struct outcome outcome = run_client();
    struct results *r = results();
    check(outcome.done && r->state == 0x37f00001f80 && r->state_kept, "DF, AC, MXCSR and the control word are the server's in a handler, the client's after it (%lx)",
          r->state);
    check(r->refused == 6 && counts.handed_over == 0, "6 indices that no handler has are refused");
}

/* A breakpoint in the server's code, and a single step into the domain. */
static void debugging(void)
{
    client_reset(client_call);
    machine.vcpu.registers.rdi = COUNT;
    uint64_t handler = ((uint64_t *)machine.table)[COUNT];
    __asm__ volatile("mov %0, %%dr0" : : "r"(handler));
    vmwrite(GUEST_DR7, 0x402);
    fill(&counts, 0, sizeof counts);
    ((uint64_t *)machine.window[0])[WINDOW_REPLIES / 8] = 0;
    struct outcome outcome = run_client();
    vmwrite(GUEST_DR7, 0x400);
    check(outcome.done && results()->statuses[WAIT_ON_LANE] == 1 && counts.handed_over == 1, "a breakpoint of the client's in a handler: handed over once");
    client_reset(client_call);
    /* At VMFUNC itself: the trap is after it. */
    vmwrite(GUEST_RIP, (uint64_t)trampoline_switch);
    vmwrite(GUEST_RFLAGS, 0x102);
    machine.vcpu.registers.rcx = 1;
    fill(&counts, 0, sizeof counts);
    ((uint64_t *)at(&machine.client, G_SLOT))[SLOT_RSP / 8] = CLIENT_STACK + 0x1000;
    ((uint32_t *)at(&machine.client, G_USER_STACK + 0x1000))[0] = 0x1f80;
    ((uint64_t *)at(&machine.client, G_USER_STACK + 0x1000))[8] = (uint64_t)client_report;
    outcome = run_client();
    check(outcome.done && counts.handed_over == 0 && machine.vcpu.registers.rdx == REFUSED, "a single step into the domain: refused before the berth is claimed");
}

/* Another client has the berth: nobody may take the call for one that was borrowed, wherever it is interrupted. */
static void taken_berth(void)
{
    enum { ROUNDS = 100 };
    uint32_t *state = at(&machine.server, G_BERTH + BERTH_STATE);
    *state = BORROWED;
    client_reset(client_refused);
    machine.vcpu.registers.rdi = ROUNDS;
    fill(&counts, 0, sizeof counts);
    struct outcome outcome = run_client();
    check(outcome.done && outcome.value == ROUNDS && counts.handed_over == 0 && *state == BORROWED,
          "%lu of %u calls to a berth that another client has borrowed are refused", outcome.value, ROUNDS);
    *state = ASLEEP;
}

/* A reader in the client, and a page that is revoked after each of its calls. */
static void revocations(void)
{
    enum { ROUNDS = 10000 };
    uint64_t seen;
    client_reset(client_revocations);
    results()->first = *(uint64_t *)at(&machine.server, G_SECRETS);
    machine.vcpu.registers.rdi = ROUNDS;
    fill(&counts, 0, sizeof counts);
    ((uint64_t *)machine.window[0])[WINDOW_REPLIES / 8] = 0;
    struct outcome outcome = run_client();
    check(outcome.done && outcome.value == 0, "%lu of %u reads had a value older than its revocation", outcome.value, ROUNDS);
    check(counts.handed_over == ROUNDS - 1, "each read after a revocation missed once (%lu hand-overs)", counts.handed_over);
    bool order = revocations_in_order(&seen);
    check(order && seen == ROUNDS, "%lu revocations, each: zap, INVEPT, borrowers out, acknowledgement", seen);
}

/* In the middle of a borrowed call the borrower leaves before the acknowledgement. */
static void revocation_in_a_call(void)
{
    uint64_t before, seen;
    call(READ_SECRET, 0);
    revocations_in_order(&before);
    policy.revoke_at_slice = true;
    policy.slice = 20000;
    struct outcome outcome = call(SPIN, 10000);
    policy.revoke_at_slice = false;
    policy.slice = 0;
    bool order = revocations_in_order(&seen);
    check(outcome.done && outcome.value == 10000 && counts.handed_over == 1 && order && seen == before + 1,
          "a page is revoked in the middle of a call: the borrower is out before the acknowledgement (%lu, %lu hand-overs)", outcome.value,
          counts.handed_over);
}

void hand_overs(void)
{
    policy = (struct policy){.hand_over = true, .grants = true};
    link_up(false);
    causes();
    interrupts();
    taken_berth();
    states();
    debugging();
    uint64_t entries = machine.server_vcpu.entries;
    struct outcome outcome = call(ADD, 6);
    check(outcome.value == 7 && machine.server_vcpu.entries == entries, "after them a call has no exit");
    revocations();
    revocation_in_a_call();
}
