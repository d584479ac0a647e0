"""Inside a VM, beside what else its hardware offers: calls against a bare cache line and vsock, exact counts, and bulk.

All of a figure's sides are measured in one VM, taking turns. Without hardware virtualization (TCG) the guest's own code is slow,
so that figures of the guest alone say little; ratios of two ways out of the same guest, and counts, hold there, too.
"""

import contextlib
import re
import signal
import statistics
import subprocess
import tempfile

import guest
import measure
from harness.process import Failure
from guest import PORT, parsed

KIB, MIB = 1 << 10, 1 << 20
SMALLEST, LARGEST, LARGEST_QUICK = 32 * KIB, 256 * MIB, 8 * MIB
# Room for a buffer of the largest size, its copy and the guest's system.
MEMORY = "2G"
NEVER = 1 << 62
# Programs in the guest. Transfers of the first three are the vendor library's, out of the guest's pages or out of a copy.
WAYS = {
    "pinned": "AVIARY_PIN=0 transfer --vendor",
    "scattered": "AVIARY_PIN=0 transfer --vendor --scattered",
    "staged": f"AVIARY_PIN={NEVER} transfer --vendor",
    "shared": f"AVIARY_PIN={NEVER} transfer",
    "vsock": f"roundtrip bulk-guest {PORT}",
}
ROUNDS = 7
BULK_ROUNDS = 2
# Synchronous calls that are counted, and those of a longer run: what both have in common is not the calls'.
CALLS, MANY = 20_000, 120_000
IDLE_CALLS = 5
# A side that is kept from its CPU by somebody else makes the other side sleep: the run with the fewest sleeps is the one
# in which both sides polled.
TRIES = 8
ONE_WRITE = 64 * MIB

FIGURES = {
    "vm.kvm": "1: the VM had hardware virtualization (KVM); 0: none (TCG), and times of the guest's own code say little",
    "vm.line_ns": "bare cache line, guest to host and back (ivshmem)",
    "vm.lane_ns": "a message of 40 bytes through a lane's rings, guest to host and back",
    "vm.lane_vs_line": "... against the bare cache line (target <= 3)",
    "vm.vsock_vs_lane": "vsock round trip against the lane's (target >= 100)",
    "vm.sync_noop_ns": "synchronous no-op through the generated stack, from inside the VM",
    "vm.sync_vs_line": "... against the bare cache line, median of the rounds",
    "vm.sync_vs_line_best": "... in the round with the fastest line",
    "vm.async_issue_ns": "issuing an asynchronous no-op in the VM",
    "vm.stream_ns": "vsock round trip in the same VM",
    "vm.vsock_vs_sync": "... against the synchronous no-op",
    "vm.kicks_per_sync_call": f"doorbells of {CALLS} synchronous calls, per call, in the run in which both sides polled most (target 0)",
    "vm.interrupts_per_sync_call": "... interrupts of the device (target 0)",
    "vm.requests_per_sync_call": "... requests on the control queue (target 0)",
    "vm.sleeps_per_sync_call": "... sleeps of the guest's thread (target 0)",
    "vm.syscalls_per_sync_call_guest": "... system calls of the guest's process (target 0)",
    "vm.syscalls_per_sync_call_server": "... of the API server (target 0)",
    "vm.silent_slices_percent": "... slices of 200 calls with no doorbell, interrupt, request or sleep at all, of all runs",
    "vm.kicks_to_wake": "doorbells of a call after a second of idleness (target 1)",
    "vm.interrupts_to_wake": "... interrupts (1 if the guest's thread fell asleep, too)",
    "vm.write_64MiB_bytes_copied": "64 MiB written through pinned pages: bytes that guest and API server copied (target 0)",
    "vm.write_64MiB_bytes_pinned": "... bytes that the API server saw in place (target >= 67108864)",
    "vm.write_64MiB_requests": "... requests of the guest's driver, memory in huge pages",
    "vm.write_64MiB_requests_scattered": "... memory in scattered pages",
    "vm.pin_crossover_bytes": "from this size on pinning is faster than copying, writes and reads",
    "vm.pin_crossover_scattered_bytes": "... where every page lies elsewhere",
}


def meaning(figure):
    """What a figure of the bulk path stands for: vm.bulk.WAY_DIRECTION_SIZE_MBps."""
    found = re.fullmatch(r"vm\.bulk\.([a-z]+)_(write|read)_(\w+)_MBps", figure)
    if not found:
        return ""
    way, direction, size = found.groups()
    ways = {
        "pinned": "in place (huge pages)", "scattered": "in place (scattered pages)", "staged": "copied twice",
        "shared": "copied once, by the guest (device that computes in host memory)", "vsock": "over vsock",
    }
    return f"{size} {direction} in the VM, {ways[way]}, MB/s"


def size_name(n):
    return f"{n // MIB}MiB" if n >= MIB else f"{n // KIB}KiB"


def accelerated(vm):
    return {"vm.kvm": float(vm.accelerator == "KVM")}


def calls(quick):
    """Calls, a bare cache line and vsock, in turns."""
    rounds = []
    with guest.booted() as vm:
        for _ in range(3 if quick else ROUNDS):
            with vm.answered("line-host", vm.line_memory()):
                figures = vm.measured("roundtrip line-guest 100000")
            with vm.answered("host", vm.line_memory(), program=guest.ECHO):
                figures |= vm.measured('lane-echo guest "$(roundtrip line-memory)"')
            figures |= vm.measured("calls 20000")
            with vm.answered("stream-host", vm.stream_socket()):
                figures |= {"vsock_ns": vm.measured(f"roundtrip stream-guest {PORT} 1000")["stream_ns"]}
            rounds.append(figures)
        label = accelerated(vm)
    middle = measure.medians(rounds)
    fastest = min(rounds, key=lambda figures: figures["line_ns"])
    return label | {
        "vm.line_ns": middle["line_ns"],
        "vm.lane_ns": middle["lane_ns"],
        "vm.lane_vs_line": statistics.median(figures["lane_ns"] / figures["line_ns"] for figures in rounds),
        "vm.vsock_vs_lane": statistics.median(figures["vsock_ns"] / figures["lane_ns"] for figures in rounds),
        "vm.sync_noop_ns": middle["sync_ns"],
        "vm.sync_vs_line": statistics.median(figures["sync_ns"] / figures["line_ns"] for figures in rounds),
        "vm.sync_vs_line_best": fastest["sync_ns"] / fastest["line_ns"],
        "vm.async_issue_ns": middle["async_ns"],
        "vm.stream_ns": middle["vsock_ns"],
        "vm.vsock_vs_sync": statistics.median(figures["vsock_ns"] / figures["sync_ns"] for figures in rounds),
    }


def total_of(summary):
    """System calls in what strace -c wrote."""
    total = [line.split() for line in summary.splitlines() if line.rstrip().endswith("total")]
    if not total:
        raise Failure("strace printed no total")
    # % time, seconds, usecs/call, calls, errors.
    return int(total[-1][3])


@contextlib.contextmanager
def traced(pid, counted):
    """Puts the number of the system calls that a process of this machine makes meanwhile into `counted`."""
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as summary:
        tracer = subprocess.Popen(["strace", "-f", "-c", "-p", str(pid), "-o", summary.name], stderr=subprocess.PIPE, text=True)
        try:
            attached = tracer.stderr.readline()
            if "attached" not in attached:
                raise Failure(f"strace: {attached.strip()}")
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(30)
        counted.append(total_of(summary.read()))


def traced_in_guest(vm, number):
    vm.run(f"strace -f -c -o /tmp/strace callcost sync {number}")
    return total_of("\n".join(vm.run("cat /tmp/strace")))


def counted_run(vm, idles):
    """What the driver counts of so many calls; system calls of the API server; what it counts of calls that wake."""
    command, server = f"counts {CALLS} {idles}", []
    vm.type(command)
    if (line := vm.line()) != "ready":
        raise Failure(f"in the VM: {command}: {line}")
    with traced(vm.session("counts")["server"], server):
        vm.type()
        busy = parsed([vm.line()], command)
    vm.type()
    idle = parsed(vm.end(command), command)
    return busy, server[0], idle


def counts(quick):
    """Exact numbers: what the clock says does not matter, but whether anybody was kept from its CPU does."""
    with guest.booted() as vm:
        busy, server = [], []
        for number in range(TRIES):
            counted, syscalls, woken = counted_run(vm, IDLE_CALLS if number == 0 else 0)
            busy.append(counted)
            server.append(syscalls)
            if number == 0:
                idle = woken
            if quick and not counted["sleeps"] + counted["kicks"] + counted["interrupts"]:
                break
        in_guest = min(
            max(0, traced_in_guest(vm, MANY) - traced_in_guest(vm, CALLS)) / (MANY - CALLS) for _ in range(1 if quick else 3)
        )
        label = accelerated(vm)
    best = min(busy, key=lambda counted: counted["sleeps"] + counted["kicks"] + counted["interrupts"])
    return label | {
        **{f"vm.{name}_per_sync_call": best[name] / CALLS for name in ("kicks", "interrupts", "requests", "sleeps")},
        "vm.syscalls_per_sync_call_guest": in_guest,
        "vm.syscalls_per_sync_call_server": min(server) / CALLS,
        "vm.silent_slices_percent": 100 * sum(counted["clean"] for counted in busy) / sum(counted["slices"] for counted in busy),
        "vm.kicks_to_wake": idle["kicks"] / IDLE_CALLS,
        "vm.interrupts_to_wake": idle["interrupts"] / IDLE_CALLS,
    }


def transfers(vm, way, largest):
    """MB/s by direction and size."""
    listener = vm.answered("stream-host", vm.stream_socket()) if way == "vsock" else contextlib.nullcontext()
    with listener:
        return vm.measured(f"{WAYS[way]} {SMALLEST} {largest}", 1800)


def one_write(vm, scattered):
    """What the node and the driver count of one write through pinned pages."""
    command = f"{WAYS['scattered' if scattered else 'pinned']} --once {ONE_WRITE}"
    vm.type(command)
    if (line := vm.line()) != "ready":
        raise Failure(f"in the VM: {command}: {line}")
    before = vm.session("transfer")["counters"]
    vm.type()
    driver = parsed([vm.line()], command)
    # The API server has answered, so that its counters are up to date.
    after = vm.session("transfer")["counters"]
    vm.type()
    vm.end(command)
    return driver, {name: after[name] - before[name] for name in ("bytes_pinned", "bytes_copied")}


def crossover(pinned, staged):
    """The smallest size from which on pinning is faster; none if copying the largest still is."""
    found = None
    for size in sorted(pinned, key=int, reverse=True):
        if pinned[size] <= staged[size]:
            break
        found = int(size)
    return found


def bulk(quick):
    """All ways for bulk, in turns."""
    largest = LARGEST_QUICK if quick else LARGEST
    rounds = {way: [] for way in WAYS}
    with guest.booted(MEMORY) as vm:
        driver, node = one_write(vm, False)
        scattered, _ = one_write(vm, True)
        for number in range(1 if quick else BULK_ROUNDS):
            for way in WAYS:
                # The slow one once: nobody compares it by percents.
                if way != "vsock" or number == 0:
                    rounds[way].append(transfers(vm, way, largest))
        label = accelerated(vm)
    figures = label | {
        "vm.write_64MiB_bytes_copied": node["bytes_copied"],
        "vm.write_64MiB_bytes_pinned": node["bytes_pinned"],
        "vm.write_64MiB_requests": driver["requests"],
        "vm.write_64MiB_requests_scattered": scattered["requests"],
    }
    for direction in ("write", "read"):
        for way, results in rounds.items():
            middle = measure.medians([result[f"{direction}_MBps"] for result in results])
            figures |= {f"vm.bulk.{way}_{direction}_{size_name(int(size))}_MBps": rate for size, rate in middle.items()}
    for way, name in (("pinned", "vm.pin_crossover_bytes"), ("scattered", "vm.pin_crossover_scattered_bytes")):
        found = [crossover(table(figures, way, direction), table(figures, "staged", direction)) for direction in ("write", "read")]
        if all(found):
            figures[name] = max(found)
    return figures


def table(figures, way, direction):
    """Bytes -> MB/s."""
    rates = {}
    for name, rate in figures.items():
        found = re.fullmatch(rf"vm\.bulk\.{way}_{direction}_(\d+)([KM])iB_MBps", name)
        if found:
            rates[int(found[1]) * (MIB if found[2] == "M" else KIB)] = rate
    return rates
