/* The order of the test, and its first part: what a call costs. */
#include "monitor.h"

#include "client.h"


static struct results *results(void) { return at(&machine.client, G_RESULTS); }

static void row(const char *name, const struct measured *measured)
{
    print("figure: %s: %lu exits, %lu ticks a call\n", name, measured->exits / CALLS, measured->ticks / CALLS);
}

/* Calls by VMFUNC, by exits, with arch_prctl, and what they are made of. Ticks are instructions of the emulator, not time. */
void measure(void)
{
    policy = (struct policy){.exits_switch = true};
    link_up(true);
    client_reset(client_measure);
    uint64_t entries = machine.server_vcpu.entries;
    struct outcome outcome = run_client();
    struct results *r = results();
    check(outcome.done, "the client measures (exit %u at %lx)", outcome.reason, outcome.rip);
    row("delegated call", &r->delegated);
    row("the same with exits in place of VMFUNC", &r->by_exit);
    row("the same with arch_prctl in place of WRFSBASE", &r->arch_prctl);
    row("plain call", &r->plain);
    row("null exit (CPUID)", &r->null_exit);
    row("null system call", &r->null_system_call);
    check(r->delegated.exits == 0, "%lu exits in %u delegated calls", r->delegated.exits, CALLS);
    check(r->by_exit.exits == 2 * CALLS, "%lu exits in %u calls with exits in place of VMFUNC", r->by_exit.exits, CALLS);
    check(r->delegated.wrong + r->by_exit.wrong + r->arch_prctl.wrong == 0, "all results are right");
    check(r->delegated.ticks <= 100 * CALLS, "the trampoline costs at most 100 ticks both ways");
    check(r->arch_prctl.ticks > r->delegated.ticks, "arch_prctl costs more than WRFSBASE");
    check(outcome.value == 0x5e47e4, "a handler has the FS base of the server's thread (%lx)", outcome.value);
    check(machine.server_vcpu.entries == entries, "the server's virtual CPU is not entered for them");
}

_Noreturn void monitor_main(void)
{
    print("\nbuild: %s\n", WHOLE ? "paper" : "domain");
    vmx_on();
    machine_make();
    server_start_up();
    measure();
    if (!WHOLE) hand_overs();
    attacks();
    sweeps();
    print("figure: %lu million ticks\n", ticks() / 1000000);
    print("end\n");
    power_off();
}
