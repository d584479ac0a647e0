#!/usr/bin/env python3
"""What a call costs besides time: instructions and system calls. Figures that hardly depend on the machine's mood.

  bench/callcost.py build     compiles the program in which the server's side is counted
  bench/callcost.py check     compares with the baseline in instructions.json; a test
  bench/callcost.py update    makes what is counted now the baseline
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.process import AVIARY, ROOT, Failure, run  # noqa: E402
from harness.report import Report  # noqa: E402
from measure import BUILD, compile_c, test_library  # noqa: E402

BASELINE = ROOT / "bench" / "instructions.json"
# Growth over the baseline that the test lets pass.
TOLERANCE = 0.05
CALLS = 2000
# Where a side waits or wakes the other: how often is not its doing.
WAITS = ["*Consumer*wait_for_seal*", "*Producer*wait_for_room*", "*wake_peer*"]
# How often the test tries: a side that is kept from its CPU by somebody else makes the other side sleep, which is
# more instructions (about 5% of a synchronous call's on a machine with a load of 10) and system calls.
TRIES = 8
# Seconds for which a measurement that came out too large waits for a machine with room before the next.
REST = 30
# What is measured goes before all else on the machine where that is allowed.
FIRST = ["nice", "-n", "-20"] if os.geteuid() == 0 else []
# System calls per call that the test lets pass.
MOST_SYSCALLS = 0.02
# Share of a call's instructions in the API server that a session may cost more because it can be moved.
MOST_MOVABLE = 0.05
FEW, MANY = 20_000, 220_000


def collected(command, functions, env=None):
    """Instructions that callgrind counts inside the functions, less what is spent waiting."""
    toggles = [f"--toggle-collect={name}" for name in functions + WAITS]
    with tempfile.TemporaryDirectory() as scratch:
        valgrind = ["valgrind", "--tool=callgrind", *toggles, f"--callgrind-out-file={scratch}/out"]
        done = subprocess.run([*map(str, [*FIRST, *command(valgrind)])], capture_output=True, text=True, timeout=300, check=False, env=env)
    counts = re.findall(r"Collected : (\d+)", done.stderr)
    if done.returncode or not counts:
        raise Failure(f"callgrind: {done.stderr.strip()[-1000:]}")
    return int(counts[-1])


def guest_side(kind):
    _, environment = test_library()
    program = compile_c("callcost", "-I", ROOT / "apis/testapi/include", "-L", BUILD / "testapi", "-ltestapi")
    function = {"sync": "ta_noop", "async": "ta_noop_async"}[kind]
    command = lambda valgrind: [AVIARY, "run", "--api", "testapi", "--", *valgrind, program, kind, str(CALLS)]
    return collected(command, [function], {**os.environ, **environment}) / CALLS


def server_tests():
    """The unit tests of aviary-server as it is released."""
    # With the command, which has no library: its features are those with which all else has been compiled.
    packages = ["--package", "aviary-server", "--package", "aviary"]
    built = subprocess.run(["cargo", "test", *packages, "--release", "--quiet", "--lib", "--no-run", "--message-format=json"],
                           cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    tests = [m["executable"] for m in map(json.loads, built.stdout.splitlines())
             if m.get("profile", {}).get("test") and m.get("executable") and m["target"]["name"] == "aviary_server"]
    if built.returncode or not tests:
        raise Failure("cargo test --release --package aviary-server --no-run: see above")
    return tests[-1]


def server_side(kind, session=""):
    tests = server_tests()
    name = session + {"sync": "synchronous_calls_to_count", "async": "asynchronous_calls_to_count"}[kind]
    command = lambda valgrind: [*valgrind, tests, "--exact", f"lane::tests::{name}", "--test-threads=1"]
    return collected(command, ["aviary_counted_service"]) / CALLS


COUNTERS = {
    f"calls.instructions_{kind}_{side}": (count, kind)
    for kind in ("sync", "async")
    for side, count in (("guest", guest_side), ("server", server_side))
}


def instructions(_quick=False):
    return {name: count(kind) for name, (count, kind) in COUNTERS.items()}


def movable(_quick=False):
    """What a session that can be moved adds to the instructions of a call in the API server, as a share."""
    added = lambda kind: server_side(kind, "movable_") / server_side(kind) - 1
    return {f"calls.movable_{kind}": least(lambda kind=kind: added(kind), MOST_MOVABLE) for kind in ("sync", "async")}


def least(measure_once, enough):
    """Of up to TRIES measurements, ended by one that is small enough."""
    best = float("inf")
    for left in reversed(range(TRIES)):
        best = min(best, measure_once())
        if best <= enough:
            break
        if left:
            wait_for_rest()
    return best


def busy_share(seconds):
    """The share of all CPUs' time that was used, or taken by the machine's host, in the next so many seconds."""
    def times():
        user, nice, system, idle, waiting, *others = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
        return idle + waiting, user + nice + system + idle + waiting + sum(others)

    idle_before, all_before = times()
    time.sleep(seconds)
    idle_after, all_after = times()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def wait_for_rest():
    """Returns when half of the machine is idle, or after half a minute."""
    end = time.monotonic() + REST
    while time.monotonic() < end and busy_share(1) > 0.5:
        pass


def traced(kind, calls):
    """System calls of everything that `aviary run` starts: guest, API server and node."""
    _, environment = test_library()
    program = compile_c("callcost", "-I", ROOT / "apis/testapi/include", "-L", BUILD / "testapi", "-ltestapi")
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as summary:
        command = [*FIRST, "strace", "-f", "-c", "-o", summary.name, AVIARY, "run", "--api", "testapi", "--"]
        run([*command, program, kind, str(calls)], env=environment)
        # The last line: % time, seconds, usecs/call, calls, errors.
        total = [line.split() for line in summary if line.rstrip().endswith("total")]
    if not total:
        raise Failure("strace printed no total")
    return int(total[-1][3])


def syscalls_per_call(kind):
    return max(0, traced(kind, MANY) - traced(kind, FEW)) / (MANY - FEW)


def syscalls(_quick=False):
    return {f"calls.syscalls_per_{kind}_call": least(lambda kind=kind: syscalls_per_call(kind), MOST_SYSCALLS) for kind in ("sync", "async")}


def check():
    baseline, report = json.loads(BASELINE.read_text(encoding="utf-8")), Report()
    for name, (count, kind) in COUNTERS.items():
        most = baseline[name] * (1 + TOLERANCE)
        now = least(lambda count=count, kind=kind: count(kind), most)
        report.check(now <= most, f"{name}: {now:.1f}, baseline {baseline[name]:.1f}", "if that is worth it: bench/callcost.py update")
    for name, now in movable().items():
        report.check(now <= MOST_MOVABLE, f"{name}: {now:+.4f}, at most {MOST_MOVABLE}")
    for name, now in syscalls().items():
        report.check(now <= MOST_SYSCALLS, f"{name}: {now:.5f}, at most {MOST_SYSCALLS}")
    return report.finish()


def build():
    try:
        print(f"built {server_tests()}")
    except Failure as failure:
        print(f"FAIL {failure}")
        return 1
    return 0


def update():
    BASELINE.write_text(json.dumps({k: round(v, 1) for k, v in instructions().items()}, indent=2) + "\n", encoding="utf-8")
    print(BASELINE.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    commands = {"build": build, "check": check, "update": update}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    sys.exit(commands[sys.argv[1]]())
