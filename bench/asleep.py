"""What a synchronous call costs whose API server sleeps: CPU time and context switches of both sides, on one CPU."""

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

from harness.process import AVIARY, ROOT, Failure, run
from measure import BUILD, compile_c, measured, medians, remoted, test_library

# Turns that the call and the bare pair of processes take.
TURNS = 5


def spent(process):
    """Nanoseconds on a CPU of all threads of a process, and their context switches, so far."""
    cpu, switches = 0, 0
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):
            cpu += int((task / "schedstat").read_text().split()[0])
            lines = (task / "status").read_text().splitlines()
            switches += sum(int(line.split()[1]) for line in lines if line.startswith(("voluntary_", "nonvoluntary_")))
    return cpu, switches


def server_of(program):
    reports = json.loads(run([AVIARY, "ps", "--json"]))
    found = [session["server"] for report in reports for session in report["sessions"] if session["guest"] == program]
    if len(found) != 1:
        raise Failure(f"process {program} has {len(found)} sessions")
    return found[0]


def between(command, environment, look):
    """What `look` says of a program's process at the beginning and at the end of its calls, and how many seconds they took. The program
    prints `ready`, waits for a line, prints `done` after its calls, and waits for the end of its input."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as run_of:
        try:
            if run_of.stdout.readline() != "ready\n":
                raise Failure(f"{command[-3]} did not begin its calls")
            before, began = look(run_of.pid), time.monotonic()
            run_of.stdin.write("\n")
            run_of.stdin.flush()
            if run_of.stdout.readline() != "done\n":
                raise Failure(f"{command[-3]} did not end its calls")
            seconds, after = time.monotonic() - began, look(run_of.pid)
        finally:
            run_of.stdin.close()
    return before, after, seconds


def call(program, count, environment, pinned):
    """Of one call: what the program and its API server have spent."""
    command = [*pinned, *remoted([program, "calls", str(count)], "--api", "testapi")]
    before, after, _ = between(command, environment, lambda guest: [spent(process) for process in (guest, server_of(guest))])
    cpu, switches = (sum(now[i] - then[i] for now, then in zip(after, before)) / count for i in range(2))
    return {"asleep_cpu_ns": cpu, "asleep_switches": switches}


def asleep(quick):
    _, environment = test_library()
    program = compile_c("asleep", "-I", ROOT / "apis/testapi/include", "-L", BUILD / "testapi", "-ltestapi")
    count = 5000 if quick else 50000
    # Any one of those that this process may use.
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    calls, pairs = [], []
    for _ in range(TURNS):
        pairs.append(measured([*pinned, program, "pair", str(count)], env=environment)["cpu_ns"])
        calls.append(call(program, count, environment, pinned))
    figures = medians(calls)
    pair = sorted(pairs)[len(pairs) // 2]
    return {f"breakdown.{name}": value for name, value in figures.items()} | {
        "breakdown.asleep_pair_ns": pair,
        "breakdown.asleep_ratio": figures["asleep_cpu_ns"] / pair,
    }
