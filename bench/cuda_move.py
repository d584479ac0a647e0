#!/usr/bin/env python3
"""Moves of a CUDA program's session on its device: equal results, then downtime by phase for sessions of several sizes.

  bench/cuda_move.py [--sizes MIB,MIB...] [--moves N] [--driver FOLDER] [--json FILE]

Without --driver the machine's own driver is used; `target/cuda-tests/driver` is the reference driver. It reads and
changes no setting of a card. Needs `./x setup`, or what that builds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.node import running  # noqa: E402
from harness.process import AVIARY, Failure, Wrong, wait_until  # noqa: E402

HANG = 600
SIZES = (64, 2048, 16384)
MOVES = 10
PHASES = ("stop", "drain", "capture", "rebuild", "whole")


def compiled(folder, driver):
    headers = next(p for p in (ROOT / "target/cache/cuda-runtime/include", ROOT / "target/cache/cuda-headers",
                               Path("/usr/local/cuda/include")) if (p / "cuda.h").exists())
    program = Path(folder) / "resident"
    library = [f"-L{driver}", "-lcuda"] if driver else ["-l:libcuda.so.1"]
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-isystem", headers, "-o", program, ROOT / "bench/cuda/resident.c", *library],
                   check=True)
    return program


def step(program):
    program.stdin.write("\n")
    program.stdin.flush()
    line = program.stdout.readline()
    if not line.startswith("step "):
        raise Wrong(f"no step, but {line!r}, status {program.poll()}")


def started(command, environment):
    program = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = program.stdout.readline()
    if line != "ready\n":
        raise Failure(f"the program did not start: {line!r}")
    return program


def digest(program):
    program.stdin.close()
    line = program.stdout.read().strip()
    if program.wait(timeout=HANG) != 0 or not line.startswith("digest "):
        raise Wrong(f"no digest, but {line!r}, status {program.returncode}")
    return line


def session_of(node):
    report = node.report()
    return next((session for session in report["sessions"] if session["api"] == "cuda"), None) if report else None


def migrate(node, session):
    done = subprocess.run([AVIARY, "migrate", "--server", node.address, "--json", str(session)], capture_output=True,
                          text=True, timeout=HANG, check=False)
    answer = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}
    if done.returncode != 0 or "moved" not in answer:
        raise Wrong(f"not moved: {answer}")
    return answer["moved"]


def measured(program, mib, moves, driver):
    """Microseconds of each phase of each move; the result must be that of a native run."""
    vendor = {"LD_LIBRARY_PATH": str(driver)} if driver else {}
    native = started([program, str(mib)], {**os.environ, **vendor})
    for _ in range(moves + 1):
        step(native)
    expected = digest(native)
    phases = []
    with running(vendor) as node:
        command = [AVIARY, "run", "--api", "cuda", "--server", node.address, "--", program, str(mib)]
        guest = started(command, os.environ)
        session = wait_until(HANG, "the session", lambda: session_of(node))["session"]
        step(guest)
        for _ in range(moves):
            phases.append(migrate(node, session))
            step(guest)
        found = digest(guest)
    if found != expected:
        raise Wrong(f"{mib} MiB: {found} instead of {expected}")
    return phases


def milliseconds(move, phase):
    """Of one phase; `aviary migrate --json` says microseconds."""
    return move[f"{phase}_us"] / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--moves", type=int, default=MOVES)
    parser.add_argument("--driver", type=lambda path: Path(path).resolve())
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory(prefix="aviary-cuda-move-") as folder:
        program = compiled(folder, arguments.driver)
        for mib in map(int, arguments.sizes.split(",")):
            moves = measured(program, mib, arguments.moves, arguments.driver)
            for phase in PHASES:
                times = [milliseconds(move, phase) for move in moves]
                figures[f"cuda_move.{mib}.{phase}_ms"] = statistics.median(times)
                print(f"{mib:6} MiB {phase:8} median {statistics.median(times):9.1f} ms, longest {max(times):9.1f} ms", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
