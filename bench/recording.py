"""The cost of being able to move: what sessions that are recorded take beyond those of a node with `movable = false`, and the size of
a session's object log over many calls."""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure
from harness.node import guest_environment, running
from harness.process import ROOT, Failure, Skipped, run
from moves import PROGRAMS

sys.path[:0] = [str(ROOT / "apis/opencl/tests"), str(ROOT / "tests/moving")]

from operator_cases import calls, tenant_used  # noqa: E402

# Runs of a program with and without recording, in turns.
ROUNDS, ROUNDS_QUICK = 7, 2
# Calls of one session after which the bytes of its object log are read: first and last.
FEW_CALLS, MANY_CALLS, MANY_CALLS_QUICK = 100_000, 10_000_000, 1_000_000
# Seconds that the session may take for all its calls.
CALLS_LIMIT_S = 900

FIGURES = {
    **{
        f"recording.{name}_cpu": f"CPU time of {name} on PoCL with its node, in sessions that are recorded, to that without "
                                 "(medians; target <= 1.01)"
        for name in PROGRAMS
    },
    "recording.log_calls": "calls of one session that makes and ends objects all the time",
    "recording.log_bytes_few": "... bytes of its object log after 100,000 calls, largest of 20 readings",
    "recording.log_bytes_many": "... after all of them (target: the same)",
}


def cpu_seconds():
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_of_program(program, expected, work, options):
    """CPU seconds of a run, its node and API servers; each run has a node of its own."""
    from runtimes import Place

    before = cpu_seconds()
    environment = Place("pocl", False, work).environment()
    passed = [f"--pass-environment={pattern}" for pattern in ("POCL_*", "OCL_*")]
    with running(environment, "--sandbox", "off", *passed, *options) as node:
        outcome = program.run(Place("pocl", True, work, ("--server", node.address)))
    if program.visible(outcome) != expected:
        raise Failure(f"{program.name}: results differ from native ones")
    return cpu_seconds() - before


def programs(rounds, config):
    from catalog import catalog
    from runtimes import Place, vendor_folder

    if vendor_folder("pocl") is None:
        raise Skipped("PoCL is not installed")
    known = {program.name: program for program in catalog()}
    result = {}
    for name, there in PROGRAMS.items():
        if there not in known:
            raise Failure(f"not installed: {there} (./x setup)")
        with tempfile.TemporaryDirectory(prefix="aviary-recording-") as directory:
            work, program = Path(directory), known[there]
            expected = program.visible([program.run(Place("pocl", False, work)) for _ in range(2)][-1])
            pairs = [
                [cpu_of_program(program, expected, work, options) for options in ((), ("--config", config))] for _ in range(rounds)
            ]
        recorded, plain = (statistics.median(times) for times in zip(*pairs))
        print(f"  {name}: {recorded:.3f} s recorded, {plain:.3f} s not; all: {[[round(s, 3) for s in pair] for pair in pairs]}", file=sys.stderr)
        result[f"recording.{name}_cpu"] = recorded / plain
    return result


def largest_log(node):
    """The largest of 20 readings, which are taken while objects come and go."""
    return max(tenant_used(node, "host_log")[0] for _ in range(20))


def log_bytes(many):
    measure.BUILD.mkdir(parents=True, exist_ok=True)
    library = measure.BUILD / "recording-testapi"
    run(["sh", ROOT / "apis/testapi/build", library])
    testapi = {"LD_LIBRARY_PATH": str(library)}
    with running(testapi) as node, guest_environment("testapi", testapi, node.address) as guests:
        program = subprocess.Popen([library / "hold", str(CALLS_LIMIT_S)], env=guests, stdout=subprocess.PIPE, text=True)
        try:
            if not program.stdout.readline().startswith("holding"):
                raise Failure("the program did not start")
            found = []
            for wanted in (FEW_CALLS, many):
                while (made := calls(node) or 0) < wanted:
                    if program.poll() is not None:
                        raise Failure(f"the program has ended after {made} calls")
                    time.sleep(0.2)
                found.append(largest_log(node))
        finally:
            program.kill()
            program.communicate()
        node.settle()
    return {"recording.log_calls": made, "recording.log_bytes_few": found[0], "recording.log_bytes_many": found[1]}


def recording(quick):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write("movable = false\n")
        config.flush()
        result = log_bytes(MANY_CALLS_QUICK if quick else MANY_CALLS)
        return result | programs(ROUNDS_QUICK if quick else ROUNDS, config.name)
