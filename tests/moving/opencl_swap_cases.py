"""OpenCL's memory objects leave for the host and are made again when they return: by an operator, where programs have more memory
than the device, and where processes die meanwhile."""

import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.node import guest_environment, running
from harness.process import HANG, ROOT, Skipped, Wrong, alive, wait_until
from operator_cases import sessions, tenant_used
from parking_cases import nothing_is_left
from swap_cases import host_swap, keeps, swap, swap_out

sys.path.insert(0, str(ROOT / "apis/opencl/tests"))

from catalog import catalog  # noqa: E402
from runtimes import CACHE, Place, compile_c, vendor_folder  # noqa: E402

# Of `crowd`: buffers and their bytes, and those that it has besides (two images and the sums of pixels).
BUFFERS, BYTES, MORE = 10, 400_000, 3 * 61 * 37 * 4
NEED = BUFFERS * BYTES + MORE
# Buffers that do not fit into the memory that a program shares with its API server, for as many as have no room there.
LARGE, SMALL_ARENA = 4_000_000, "16M"


def crowd():
    return compile_c(ROOT / "apis/opencl/tests/programs/crowd.c", CACHE / "opencl-programs")


def environment_of(tools):
    if vendor_folder("pocl") is None:
        raise Skipped("PoCL is not installed")
    tools.library.mkdir(parents=True, exist_ok=True)
    return Place("pocl", True, tools.library).environment()


@contextlib.contextmanager
def node_and_guests(tools, *options):
    environment = environment_of(tools)
    with running(environment, *options) as node, guest_environment("opencl", environment, node.address) as guests:
        yield node, guests


class Crowd:
    """`crowd`, which works once for each line that it is told."""

    def __init__(self, node, environment, size=BYTES):
        self.node = node
        self.process = subprocess.Popen(
            [crowd(), str(BUFFERS), str(size), "1000", "told"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        if self.process.stdout.readline() != "holding\n":
            raise Wrong(f"crowd did not begin: {self.process.communicate()}: {node.log.read_text()[-1500:]}")
        self.session = self.report()["session"]

    def report(self):
        return next((s for s in sessions(self.node, "opencl") if s["guest"] == self.process.pid), None)

    def told(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self.process.stdout.readline()

    def works(self):
        if (answer := self.told()) != "called\n":
            raise Wrong(f"it says {answer!r}: {self.node.log.read_text()[-1500:]}")

    def is_lost(self):
        answer = self.told()
        if "gave -" not in answer or self.process.wait(timeout=HANG) != 1:
            raise Wrong(f"it says {answer!r}")
        self.process.communicate()

    def end(self):
        self.process.kill()
        self.process.communicate()


def device_memory(report):
    """In all, and what of it is on the device."""
    counters = report["counters"]
    of = lambda name: sum(used for key, used in counters.items() if re.fullmatch(f"{name}@.*[.]used", key))  # noqa: E731
    return of("device_memory"), of("resident_memory")


def objects_return_under_their_handles(tools):
    with node_and_guests(tools) as (node, environment):
        program = Crowd(node, environment)
        server, used = program.report()["server"], tenant_used(node)
        for turn in range(1, 4):
            figures = swap_out(node, program.session)
            report = program.report()
            if (figures["bytes"], figures["outs"], report["server"]) != (NEED, turn, server):
                raise Wrong(f"{figures}, {report}")
            if tenant_used(node) != used or used[0] != NEED or host_swap(node) != (NEED, NEED):
                raise Wrong(f"used {tenant_used(node)}, swap {host_swap(node)}")
            if turn == 2 and (swap(node, "in", program.session)[0] or keeps(program) is None):
                raise Wrong(f"not swapped in: {program.report()}")
            program.works()
            wait_until(HANG, "it is back", lambda: keeps(program) is not None)
            # The host memory of what was copied stays for the next time, and is charged.
            kept = keeps(program)
            if kept > NEED or program.report()["server"] != server or tenant_used(node) != used or host_swap(node) != (kept, kept):
                raise Wrong(f"it is not as it was: {program.report()}")
        program.end()
        nothing_is_left(node, "after a swap")


def death_while_objects_are_out_loses_that_session_alone(tools):
    with node_and_guests(tools) as (node, environment):
        other = Crowd(node, environment)
        for victim in ("server", "program"):
            program = Crowd(node, environment)
            swap_out(node, program.session)
            report = program.report()
            os.kill(report["server"] if victim == "server" else program.process.pid, signal.SIGKILL)
            if victim == "server":
                program.is_lost()
            else:
                program.end()
            wait_until(HANG, "the other one is alone", lambda: len(sessions(node, "opencl")) == 1)
            wait_until(HANG, "its accounts are settled", lambda: host_swap(node) == (0, 0))
            wait_until(HANG, "its API server ends", lambda s=report["server"]: not alive(s))
            other.works()
        other.end()
        nothing_is_left(node, "after deaths")


@contextlib.contextmanager
def small_device(tools, memory, keys=""):
    with tempfile.TemporaryDirectory(prefix="aviary-small-") as directory:
        config = Path(directory) / "node.toml"
        config.write_text(f'[devices."*"]\nmemory = {memory}\noversubscribe = 8.0\n{keys}', encoding="utf-8")
        with node_and_guests(tools, "--config", config, "--log-level", "debug") as (node, guests):
            yield node, guests


def start(guests, size, rounds):
    return subprocess.Popen(
        [crowd(), str(BUFFERS), str(size), str(rounds)], env=guests, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def programs_of_twice_the_device(tools, size, keys="", **variables):
    """Two programs, of which the device holds one: both print what they print natively, and never is there more than that. The first
    one may be at its end before the second one needs its room: then they work longer."""
    for rounds in (60, 600, 6000):
        if two_at_once(tools, size, rounds, keys, variables):
            return
    raise Wrong(f"nobody has made room in {rounds} rounds")


def two_at_once(tools, size, rounds, keys, variables):
    """How often one of them has left."""
    need, environment = BUFFERS * size + MORE, environment_of(tools)
    native = subprocess.run(
        [crowd(), str(BUFFERS), str(size), str(rounds)], env=environment, capture_output=True, text=True, check=True, timeout=HANG
    ).stdout
    with small_device(tools, need, keys) as (node, guests):
        programs = [start({**guests, **variables}, size, rounds) for _ in range(2)]
        looks = 0
        while any(program.poll() is None for program in programs):
            shown = [device_memory(report) for report in sessions(node, "opencl")]
            if sum(there for _, there in shown) > need:
                raise Wrong(f"more than the device has: {shown}")
            looks += 1
            time.sleep(0.01)
        for program in programs:
            text, errors = program.communicate(timeout=HANG)
            if text != native or program.returncode:
                raise Wrong(f"status {program.returncode}: {text[-300:]} {errors[-500:]}")
        nothing_is_left(node, "after a crowd")
        if host_swap(node) != (0, 0):
            raise Wrong(f"{host_swap(node)}")
        outs = node.log.read_text().count("swapped out")
        tools.figures.append({"case": "opencl-crowd", "looks": looks, "outs": outs})
        return outs


def crowd_in_memory_of_the_runtime(tools):
    """Most buffers are not in memory that the program shares: their contents are copied out, and back into new objects."""
    programs_of_twice_the_device(tools, LARGE, AVIARY_ARENA=SMALL_ARENA)


def seen_of(node, run):
    """The most device memory that a look has shown while it ran."""
    most = 0
    while not run.done():
        shown = [device_memory(session)[0] for session in node.ask("ps")["sessions"]]
        most = max(most, *shown, 0)
    return most


def peak_of(tools, program):
    """The most device memory that the program has at a time: with a byte less it is refused some."""
    peak, pool = None, concurrent.futures.ThreadPoolExecutor(1)
    while True:
        limit = ("--limit", f"device_memory={peak}") if peak else ()
        with node_and_guests(tools, *limit) as (node, _):
            run = pool.submit(program.run, Place("pocl", True, tools.library / "opencl-peak", ("--server", node.address)))
            seen = seen_of(node, run)
            refused = re.findall(r"resource=device_memory .*asked=(\d+) used=(\d+)", node.log.read_text())
        if peak and not refused:
            return peak
        # A look misses what is there for a moment.
        peak = max((int(asked) + int(used) for asked, used in refused), default=max(seen, 1 << 16))


def copies_with_half_of_their_memory(tools, program):
    """Two copies of an unmodified program on a device that has the memory of one show what its native run shows."""
    environment_of(tools)
    native = program.run(Place("pocl", False, tools.library / "opencl-native"))
    memory, copies = peak_of(tools, program), 2
    with small_device(tools, memory) as (node, _), concurrent.futures.ThreadPoolExecutor(copies) as pool:
        places = [
            Place("pocl", True, tools.library / f"opencl-half-{copy}", ("--server", node.address), copy=copy)
            for copy in range(copies)
        ]
        runs = [pool.submit(program.run, place) for place in places]
        most = 0
        while not all(run.done() for run in runs):
            most = max(most, sum(device_memory(report)[1] for report in sessions(node, "opencl")))
            time.sleep(0.01)
        log = node.log.read_text()
        print(f"     {program.name}: {memory} bytes for two of them, {log.count('swapped out')} evictions", flush=True)
        for run in runs:
            shown, expected = program.visible(run.result()), program.visible(native)
            if shown != expected:
                refused = [line for line in log.splitlines() if "refused" in line][:3]
                raise Wrong(f"{shown!r}, natively {expected!r}: {run.result().errors[-500:]} {refused}")
        if most > memory:
            raise Wrong(f"{most} bytes on a device of {memory}")
        nothing_is_left(node, program.name)


# Unmodified programs that have memory for longer than a call.
HALVED = ("hashcat-md5", "ffmpeg-avgblur", "ffmpeg-unsharp", "ffmpeg-convolution", "clblast-xaxpy", "clblast-xdot", "clblast-xger",
          "clpeak-latency", "pyopencl-enqueue_copy")
LONG = {
    f"opencl-half-{program.name}": lambda tools, p=program: copies_with_half_of_their_memory(tools, p)
    for program in catalog() if program.name in HALVED
}
ALL = {
    "opencl-swap": objects_return_under_their_handles,
    "opencl-swap-death": death_while_objects_are_out_loses_that_session_alone,
    "opencl-swap-crowd": lambda tools: programs_of_twice_the_device(tools, BYTES),
    # Who waits for the device's time, or has work there, is not idle.
    "opencl-swap-crowd-scheduled": lambda tools: programs_of_twice_the_device(tools, BYTES, 'scheduler = "fair"\n'),
    "opencl-swap-crowd-copied": crowd_in_memory_of_the_runtime,
}
