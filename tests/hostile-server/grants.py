"""A tenant whose API server reports nothing: what the other one keeps of a scheduled device, by the device's own log."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[0]))
from harness.accelerator import Load, Stage, Tenant  # noqa: E402
from harness.process import AVIARY, HANG, ROOT, Failure  # noqa: E402

SCHEDULERS = ("fair", "wfq-poll", "wfq-aimd", "round-robin", "slices", "priority", "ebpf", "credit", "strict-coscheduling")
# Nodes with which a scheduler is tried: a busy machine takes CPU from one phase more than from another.
RUNS = 6
# Phases without and with the attack, in turn, so that both have the same machine; how long each is.
PHASES, SECONDS = 3, 0.25
# A kernel and a wait; many kernels and a wait.
SINGLE, BATCHES = Load(1600), Load(500, batch=20)


def session_of(node, tenant):
    """The tenant's session once an API is loaded in it."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        done = subprocess.run([AVIARY, "ps", "--json", "--server", node.address], capture_output=True, text=True, check=True)
        found = [one for one in json.loads(done.stdout)[0]["sessions"] if one["tenant"] == tenant and one["api"]]
        if found:
            return found[0]
        time.sleep(0.02)
    raise Failure(f"no session of {tenant}")


@contextlib.contextmanager
def understating(stage, server):
    """While it is entered, the API server reports no use and no work in flight."""
    with subprocess.Popen([stage.programs / "understate", str(server)], stdout=subprocess.PIPE, text=True) as writer:
        try:
            if writer.stdout.readline() != "writing\n":
                raise Failure("the page of grants is not found")
            yield
        finally:
            writer.kill()


def parts(stage, scheduler, load):
    """Of the device's time, what each of two tenants had without the attack and during it."""
    tenants = [Tenant(1, load)] * 2
    extra = [f'policy = "{ROOT}/policies/proportional_share.c"'] if scheduler == "ebpf" else []
    with stage.node(scheduler, tenants, extra=extra) as node:
        now = time.monotonic()
        guests = [node.guest(number, load, now, now + 2 * HANG) for number in range(2)]
        server = session_of(node, "t0")["server"]
        session_of(node, "t1")
        spans = {False: [], True: []}
        for number in range(2 * PHASES):
            attacked = number % 2 == 1
            with understating(stage, server) if attacked else contextlib.nullcontext():
                begin = time.monotonic_ns()
                time.sleep(SECONDS)
                spans[attacked].append((begin, time.monotonic_ns()))
        if any(guest.poll() is not None for guest in guests):
            raise Failure("a tenant has ended")
        records, _ = stage.records(node.accelerator)

    def had(tenant, attacked):
        overlap = lambda begin, end: sum(max(0, min(e, end) - max(b, begin)) for b, e, t in records if t == tenant)  # noqa: E731
        return sum(overlap(*span) for span in spans[attacked]) / sum(end - begin for begin, end in spans[attacked])

    return [[had(tenant, attacked) for tenant in range(2)] for attacked in (False, True)]


def understated_use(check):
    """The other tenant has nine tenths of its part without the attack, and of the device no less than the attacker."""
    with Stage() as stage:
        subprocess.run(["gcc", "-O1", "-Wall", "-o", stage.programs / "understate", HERE / "understate.c"], check=True)
        for scheduler in SCHEDULERS:
            for load in (SINGLE, BATCHES) if scheduler in ("fair", "wfq-poll") else (SINGLE,):
                for _ in range(RUNS):
                    (_, before), (attacker, during) = outcome = parts(stage, scheduler, load)
                    if during >= 0.9 * before > 0 and during >= 0.9 * attacker:
                        break
                print(f"{scheduler}, {load.batch} kernels of {load.kernel_us} us, no use reported: "
                      f"the other has {during / max(before, 1e-9):.2f} of its part")
                check(during >= 0.9 * before > 0 and during >= 0.9 * attacker, f"{scheduler}: a report of no use gains nothing", outcome)
