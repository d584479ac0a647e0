"""What idle sessions cost: processor time, wake-ups, memory, and the speed of the one that is busy."""

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import measure
from harness.node import guest_environment
from harness.process import AVIARY, ROOT, Failure, descendants, run

SESSIONS = 1000
# Sessions that start at the same time.
AT_ONCE = 16
WATCHED_SECONDS = 10
# Measurements of the busy session.
TURNS = 3


def testapi():
    """The program, the variables that it needs, and the API's name."""
    directory = measure.BUILD / "testapi"
    run(["sh", ROOT / "apis/testapi/build", directory])
    flags = ["-I", ROOT / "apis/testapi/include", "-L", directory, "-ltestapi"]
    return measure.compile_c("idle", *flags, output="idle_testapi"), {"LD_LIBRARY_PATH": str(directory)}, "testapi"


def opencl():
    return measure.compile_c("idle", "-DOPENCL", "-lOpenCL", output="idle_opencl"), {}, "opencl"


def used(pids):
    """Clock ticks and context switches of all threads of these processes, so far."""
    ticks = switches = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
            status = (task / "status").read_text()
            switches += sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)
    return ticks, switches


def memory_mb(pids):
    """Proportional set size: a page that several processes share counts once."""
    total = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


class Sessions:
    """Guest processes at one node."""

    def __init__(self, node, command, environment):
        self.node, self.command, self.environment = node, command, environment
        self.guests = []

    def start(self, count):
        begun = []
        for _ in range(count):
            begun.append(
                subprocess.Popen(
                    self.command, env=self.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
        self.guests += begun
        for guest in begun:
            if guest.stdout.readline() != "ready\n":
                raise Failure(f"session {len(self.guests)} did not start")
        return begun

    def end(self):
        for guest in self.guests:
            with contextlib.suppress(OSError):
                guest.stdin.close()
        for guest in self.guests:
            try:
                guest.wait(timeout=20)
            except subprocess.TimeoutExpired:
                guest.kill()
                guest.wait()
            guest.stdout.close()
        self.guests.clear()

    def all_processes(self):
        return [self.node.pid, *descendants(self.node.pid)], [guest.pid for guest in self.guests]


def rate(guest, seconds):
    guest.stdin.write(f"measure {seconds}\n")
    guest.stdin.flush()
    return float(guest.stdout.readline())


@contextlib.contextmanager
def running_node(environment):
    directory = Path(tempfile.mkdtemp(prefix="aviary-bench-"))
    address = f"unix:{directory}/node.sock"
    with open(directory / "log", "w", encoding="utf-8") as log:
        # pylint: disable=consider-using-with
        node = subprocess.Popen(
            [AVIARY, "serve", "--listen", address, "--log-level", "warn"],
            env={**os.environ, **environment},
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 10
        while not (directory / "node.sock").exists():
            if time.monotonic() > deadline or node.poll() is not None:
                raise Failure(f"the node does not start: {(directory / 'log').read_text()}")
            time.sleep(0.02)
        yield node, address
    finally:
        node.send_signal(signal.SIGTERM)
        node.wait()
        shutil.rmtree(directory)


def costs(program, environment, api, count, seconds):
    with running_node(environment) as (node, address), guest_environment(api, environment, address) as variables:
        sessions = Sessions(node, [program], variables)
        try:
            return watch(sessions, count, seconds)
        finally:
            sessions.end()


def watch(sessions, count, seconds):
    busy = sessions.start(1)[0]
    rate(busy, 1)
    alone = [rate(busy, seconds) for _ in range(TURNS)]
    while len(sessions.guests) < count:
        sessions.start(min(AT_ONCE, count - len(sessions.guests)))
    time.sleep(2)
    servers, guests = sessions.all_processes()
    before = used(servers + guests)
    time.sleep(WATCHED_SECONDS)
    after = used(servers + guests)
    among = [rate(busy, seconds) for _ in range(TURNS)]
    sizes = memory_mb(servers), memory_mb(guests)
    # Once more without the others, so that a change of the machine's mood meets both.
    sessions.guests.remove(busy)
    sessions.end()
    sessions.guests.append(busy)
    time.sleep(2)
    alone += [rate(busy, seconds) for _ in range(TURNS)]
    ticks = after[0] - before[0]
    return {
        "cpu_percent": 100 * ticks / os.sysconf("SC_CLK_TCK") / WATCHED_SECONDS,
        "wakeups_per_s": (after[1] - before[1]) / WATCHED_SECONDS,
        "rss_mb_1000_sessions": sizes[0] * SESSIONS / count,
        "guests_mb_1000_sessions": sizes[1] * SESSIONS / count,
        "busy_ratio": statistics.median(among) / statistics.median(alone),
    }


def measured(prepare, prefix, quick):
    program, environment, api = prepare()
    result = costs(program, environment, api, 100 if quick else SESSIONS, 0.5 if quick else 2)
    return {prefix + name: value for name, value in result.items()}


def of_testapi(quick):
    return measured(testapi, "idle.", quick)


def of_opencl(quick):
    return measured(opencl, "idle.opencl_", quick)
