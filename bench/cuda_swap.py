#!/usr/bin/env python3
"""Swap of a CUDA program's device memory: equal results, then the time of each way, alone and where two programs take turns.

  bench/cuda_swap.py [--sizes MIB,MIB...] [--swaps N] [--driver FOLDER] [--json FILE]

First `aviary swap out` takes a program's memory out between its steps, and again where nothing has changed. Then two programs share a device that has room for one of
them (`memory`, `oversubscribe` in node.toml) and make their steps in turn, so that each step brings one in and the other out.
Without --driver the machine's own driver is used; `target/cuda-tests/driver` is the reference driver. It reads and changes no
setting of a card. Needs `./x setup`, or what that builds.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from cuda_move import HANG, compiled, digest, session_of, started, step
from harness.node import running
from harness.process import AVIARY, Wrong, wait_until

SIZES = (1024, 16384)
SWAPS = 5
# What a device shared by two programs has beyond the memory of one of them.
BEYOND_MIB = 256


def natively(program, mib, steps, vendor):
    native = started([program, str(mib)], {**os.environ, **vendor})
    times = []
    for _ in range(steps):
        begun = time.monotonic()
        step(native)
        times.append(time.monotonic() - begun)
    return digest(native), statistics.median(times)


def guest_of(node, program, mib):
    return started([AVIARY, "run", "--server", node.address, "--", program, str(mib)], os.environ)


def swap_out(node, session):
    done = subprocess.run([AVIARY, "swap", "out", "--server", node.address, "--json", str(session)], capture_output=True,
                          text=True, timeout=HANG, check=False)
    answer = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}
    if answer.get("place") != "out":
        raise Wrong(f"not swapped out: {answer}: {node.log.read_text()[-1000:]}")
    return answer


def returned(node):
    """Seconds that the return of the session took; None: it has not returned."""
    swapped = session_of(node).get("swapped", {"place": ""})
    return max(swapped["return_us"], 1) / 1e6 if swapped["place"] == "in" else None


def alone(program, mib, swaps, vendor):
    """Rows of seconds: host memory made, copied out, back, and from a step's order to its end. The first row is of a session
    that keeps no host memory yet. Then rows of memory that has not changed since it last left: copied out, and the share of its
    bytes that the host had."""
    expected, _ = natively(program, mib, swaps + 1, vendor)
    rows, unchanged = [], []
    with running(vendor) as node:
        guest = guest_of(node, program, mib)
        session = wait_until(HANG, "the session", lambda: session_of(node))["session"]
        step(guest)
        for _ in range(swaps):
            out = swap_out(node, session)
            begun = time.monotonic()
            step(guest)
            answered = time.monotonic() - begun
            # The node hears of the return a moment later.
            back = wait_until(HANG, "it is back", lambda: returned(node))
            figures = out["figures"]
            rows.append((figures["reserve_us"] / 1e6, figures["copy_us"] / 1e6, back, answered))
        # The first of these follows a step, which has changed all.
        for number in range(swaps + 1):
            out = swap_out(node, session)
            if number:
                unchanged.append((out["figures"]["copy_us"] / 1e6, out["figures"]["unchanged"] / out["bytes"]))
            subprocess.run([AVIARY, "swap", "in", "--server", node.address, str(session)], timeout=HANG, check=True,
                           stdout=subprocess.DEVNULL)
        found = digest(guest)
    if found != expected:
        raise Wrong(f"{mib} MiB: {found} instead of {expected}")
    return rows, unchanged


def in_turn(program, mib, swaps, vendor):
    """Seconds from a step's order to its end, where another program's memory has to leave first; and natively."""
    expected, native = natively(program, mib, swaps, vendor)
    times = []
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        # One leaves before the other returns.
        config.write(f'parked_memory = "{2 * mib + BEYOND_MIB}M"\n[devices."*"]\nmemory = "{mib + BEYOND_MIB}M"\noversubscribe = 3.0\n')
        config.flush()
        with running(vendor, "--config", config.name) as node:
            guests = [guest_of(node, program, mib) for _ in range(2)]
            for _ in range(swaps):
                for guest in guests:
                    begun = time.monotonic()
                    step(guest)
                    times.append(time.monotonic() - begun)
            found = [digest(guest) for guest in guests]
    if found != [expected] * 2:
        raise Wrong(f"{mib} MiB in turn: {found} instead of {expected}")
    return times, native


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--swaps", type=int, default=SWAPS)
    parser.add_argument("--driver", type=lambda path: Path(path).resolve())
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory(prefix="aviary-cuda-swap-") as folder:
        program = compiled(folder, arguments.driver)
        vendor = {"LD_LIBRARY_PATH": str(arguments.driver)} if arguments.driver else {}
        for mib in map(int, arguments.sizes.split(",")):
            rows, unchanged = alone(program, mib, arguments.swaps, vendor)
            for column, name in enumerate(("reserved", "out", "back", "answered")):
                times = [row[column] for row in rows]
                figures[f"cuda_swap.{mib}.{name}_s"] = times
                rate = f", {mib / 1024 / min(times):.1f} GiB/s at best" if min(times) > 0 else ""
                print(f"{mib:6} MiB {name:9} {' '.join(f'{at:.3f}' for at in times)} s{rate}", flush=True)
            figures[f"cuda_swap.{mib}.unchanged_s"] = [row[0] for row in unchanged]
            figures[f"cuda_swap.{mib}.unchanged_share"] = [row[1] for row in unchanged]
            print(f"{mib:6} MiB unchanged {' '.join(f'{at:.3f} ({share:.0%})' for at, share in unchanged)} s", flush=True)
            times, native = in_turn(program, mib, arguments.swaps, vendor)
            figures[f"cuda_swap.{mib}.in_turn_s"], figures[f"cuda_swap.{mib}.native_s"] = times, native
            print(f"{mib:6} MiB in turn   {' '.join(f'{at:.3f}' for at in times)} s, natively {native:.3f} s", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
