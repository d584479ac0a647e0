#!/usr/bin/env python3
"""Where the slowest launches of a short kernel lose their time, alone and beside long kernels of another tenant.

  bench/cuda_tails.py [--seconds S] [--neighbours US,...] [--places PLACE,...] [--aviary FILE] [--api-dir DIR] [--json FILE]

A program launches a kernel of 100 us and waits for it, natively and on nodes that schedule nothing or share it. Each launch has three
parts: until it begins on the device, on the device, until the program sees that it is over. The device's clock is not the host's: parts
before and after are told beyond the least of the launches around them. It needs root, nvcc and a device, and changes no setting of one.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cuda_fair import ATTACH, Fair, Load  # noqa: E402

SAMPLE = struct.Struct("<5Q")
# Launches among which the clocks are taken to go alike.
AROUND = 200
BOUNDS_US = (150, 300, 500, 1000, 1500, 2000, 2500, 5000)


def parts(samples):
    """Microseconds of each launch: whole, before, on the device, after."""
    rows = []
    for at in range(0, len(samples), AROUND):
        some = samples[at:at + AROUND]
        before = min(begun - called for called, _, begun, _, _ in some)
        after = min(seen - over for _, _, _, over, seen in some)
        rows += [((seen - called) / 1e3, (begun - called - before) / 1e3, (over - begun) / 1e3, (seen - over - after) / 1e3)
                 for called, _, begun, over, seen in some]
    return rows


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def told(rows):
    """Of all launches, and of the slowest hundredth: what each part took."""
    whole = [row[0] for row in rows]
    limit = quantile(whole, 0.99)
    slow = [row for row in rows if row[0] >= limit]
    counts = [sum(value < bound for value in whole) for bound in BOUNDS_US] + [len(whole)]
    return {
        "count": len(rows), "p50": quantile(whole, 0.5), "p90": quantile(whole, 0.9), "p99": limit, "p999": quantile(whole, 0.999),
        "parts_p50": [quantile([row[i] for row in rows], 0.5) for i in (1, 2, 3)],
        "parts_p99": [quantile([row[i] for row in rows], 0.99) for i in (1, 2, 3)],
        "slow_parts_median": [statistics.median(row[i] for row in slow) for i in (1, 2, 3)],
        "per_10000": [round(1e4 * (count - before) / len(whole)) for before, count in zip([0, *counts], counts)],
    }


class Tails:
    def __init__(self, arguments, scratch):
        self.seconds = arguments.seconds
        self.fair = Fair(arguments.aviary, arguments.api_dir, scratch, self.seconds)
        self.program = self.fair.folder / "tails"
        subprocess.run(["nvcc", "-O2", "-arch=native", "-o", self.program, HERE / "cuda/tails.cu"], check=True)
        self.steps = subprocess.run([self.program, "calibrate"], capture_output=True, text=True, check=True).stdout.strip()

    def measured(self, where, neighbour):
        file = self.fair.folder / "home0" / "samples"
        with self.fair.place(where, (1, 1)) as environment:
            begin = time.monotonic() + ATTACH
            end = begin + self.seconds
            commands = [[self.program, self.steps, f"{begin:.6f}", f"{end:.6f}", file]]
            if neighbour:
                commands.append(self.fair.command(neighbour)(begin, end))
            running = [self.fair.start(number, command, environment) for number, command in enumerate(commands)]
            for program in running:
                output, errors = program.communicate(timeout=ATTACH + self.seconds + 60)
                if program.returncode:
                    raise RuntimeError(f"tails: {where}: status {program.returncode}: {(output + errors).strip()[-300:]}")
        return told(parts(list(SAMPLE.iter_unpack(file.read_bytes()))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--neighbours", default="0,5000,100000,500000", help="microseconds of the other tenant's kernels; 0: there is none")
    parser.add_argument("--places", default="native,none,fair,priority", help="`native`, `none`, or a scheduler; with `priority` that of the short "
                        "kernels goes first")
    parser.add_argument("--aviary", default=HERE.parent / "target/release/aviary")
    parser.add_argument("--api-dir", action="append", default=[])
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory(prefix="aviary-tails-") as scratch:
        os.chmod(scratch, 0o755)
        tails = Tails(arguments, scratch)
        print("launches a 10,000 below", *BOUNDS_US, "us, and above", flush=True)
        for us in map(float, arguments.neighbours.split(",")):
            for where in arguments.places.split(","):
                found = tails.measured(where, Load(us) if us else None)
                figures[f"{us:g}.{where}"] = found
                print(f"beside {us:8.0f} us {where:8} {found['count']:6} launches, p50 {found['p50']:7.1f} p90 {found['p90']:7.1f} p99 {found['p99']:7.1f} "
                      f"p99.9 {found['p999']:7.1f}; to begin, on the device, until seen: p50 {rounded(found['parts_p50'])} p99 {rounded(found['parts_p99'])} "
                      f"of the slowest {rounded(found['slow_parts_median'])}; {found['per_10000']}", flush=True)
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def rounded(values):
    return "/".join(f"{value:.0f}" for value in values)


if __name__ == "__main__":
    main()
