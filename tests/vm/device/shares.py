"""Two VMs of two tenants: limits of memory, shares of a device."""

from tenants import Stage

from machines import AVIARY, MEMORY, OPENCL, TENANTS, WEIGHTS, Wrong, run

SUBMISSION_NS = 2_000_000
SECONDS = 6
# The device runs by the host's clock; what is measured is who had it. In some windows a VM was not there to take its share, because
# all guests and servers of this test share the processors: hence not the 0.99 that the scheduler reaches among processes.
SMALLEST_RATIO = 0.85


def tenant(world, name, *changes):
    run([AVIARY, "tenant", "set", TENANTS[name], *changes, "--server", world.node.address])


def limits_are_each_tenants_own(world):
    """Both take all they may at the same time, and are refused the next byte."""
    one, two = world.both()
    vms = {"one": one, "two": two}
    for name, limit in MEMORY.items():
        tenant(world, name, "--limit", f"device_memory={limit}")
    try:
        for program in ("/opt/testapi/quota", f"{OPENCL}/quota"):
            started = {name: vms[name].start(f"{program} {MEMORY[name]}") for name in vms}
            for name, vm in vms.items():
                outcome = vm.finish(started[name], 60)
                if outcome.status:
                    raise Wrong(f"{program} in VM {name}: status {outcome.status}: {outcome.output} {outcome.errors}")
        report = run([AVIARY, "tenant", "show", "alice", "--server", world.node.address])
        if "device_memory" not in report:
            raise Wrong(report)
    finally:
        for name in MEMORY:
            tenant(world, name, "--no-limit", "device_memory")


def a_vm_over_its_limit_is_alone_with_it(world):
    """One tenant is refused everything, the other one works."""
    one, two = world.both()
    tenant(world, "one", "--limit", "device_memory=0")
    try:
        refused, working = one.start("/opt/testapi/quota 9000"), two.start("/opt/testapi/handles")
        if one.finish(refused, 60).status == 0:
            raise Wrong("a VM without memory got some")
        outcome = two.finish(working, 60)
        if outcome.status:
            raise Wrong(f"the other VM: {outcome.output} {outcome.errors}")
    finally:
        tenant(world, "one", "--no-limit", "device_memory")


def shares_by_weight(world):
    """Both want the accelerator all the time: its log says who had it."""
    both = dict(zip(("one", "two"), world.both()))
    clients = {"one": 71, "two": 72}
    started = {}
    for name, vm in both.items():
        # Seconds of the guest's clock.
        now = float(vm.expect("cut -d' ' -f1 /proc/uptime"))
        command = f"/opt/testapi/accelerate {clients[name]} {SUBMISSION_NS} 10 0 {now + 1} {now + 1 + SECONDS}"
        started[name] = vm.start(command)
    for name, vm in both.items():
        outcome = vm.finish(started[name], SECONDS + 60)
        if outcome.status:
            raise Wrong(f"accelerate in VM {name}: {outcome.output} {outcome.errors}")
    records, _ = Stage.records(world.accelerator)
    found = {name: [(b, e) for b, e, c in records if c == client] for name, client in clients.items()}
    # While both were there, without the first moment of the second one.
    begin = max(times[0][0] for times in found.values()) + 500_000_000
    end = min(times[-1][1] for times in found.values()) - 200_000_000
    had = {name: sum(max(0, min(e, end) - max(b, begin)) for b, e in times) for name, times in found.items()}
    shares = {name: had[name] / WEIGHTS[name] for name in had}
    ratio = min(shares.values()) / max(shares.values())
    used = sum(had.values()) / (end - begin)
    world.log(f"{(end - begin) / 1e9:.1f} s, device busy {used:.0%}: one had {had['one'] / 1e9:.2f} s, two {had['two'] / 1e9:.2f} s: min-max ratio {ratio:.3f}")
    if end - begin < 2e9 or ratio < SMALLEST_RATIO:
        raise Wrong(f"by weights {WEIGHTS}: {had} ns in {end - begin} ns, ratio {ratio:.3f}")
