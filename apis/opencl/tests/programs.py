#!/usr/bin/env python3
"""Runs unmodified OpenCL programs natively and through Aviary, compares what they show and how long they take.

    programs.py [--quick] [--runtime pocl|intel|nvidia] [--only NAME]... [--two] [--json FILE]

--only takes the beginning of a name; --two runs two copies of each program at once on the remoted
side; --native only looks at what works natively. The exit status is the number of programs that differ.
"""

import argparse
import difflib
import json
import math
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import catalog  # noqa: E402
from runtimes import AVIARY, HUNG, RUNTIMES, Place, vendor_folder  # noqa: E402

# Native runs that may end by a signal before the program counts as one that fails natively.
CRASHES = 4


def difference(native, remote):
    """The first lines on which two visible results differ."""
    def lines(visible):
        status, *rest = visible
        text = [f"status {status}"]
        for part in rest:
            text += part.splitlines() if isinstance(part, str) else [str(p) for p in part] if isinstance(part, list) else [str(part)]
        return text

    return "\n".join(list(difflib.unified_diff(lines(native), lines(remote), "native", "aviary", lineterm="", n=1))[:40])


class Comparison:
    def __init__(self, arguments, work):
        self.arguments = arguments
        self.work = work
        self.results = []

    def place(self, remote, copy=0):
        options = tuple(self.arguments.option)
        folder = self.work / f"{'remote' if remote else 'native'}-{copy}"
        return Place(self.arguments.runtime, remote, folder, options, copy)

    def native(self, program):
        """A native run; another one where the vendor's library has ended the process by a signal, as Intel's runtime does now and then
        on a busy machine when objects go in odd orders."""
        for _ in range(CRASHES):
            native = program.run(self.place(False))
            if native.status >= 0 or native.status == HUNG:
                break
        return native

    def compare(self, program):
        native = self.native(program)
        if program.warm and native.status != HUNG:
            # The first run compiled kernels; this one is what the other side is measured against.
            native = self.native(program)
        result = {"name": program.name, "kind": program.kind, "native_s": round(native.seconds, 3), "native_status": native.status}
        if self.arguments.native:
            result["equal"] = None
            print(f"{program.name:28} native {native.seconds:7.2f} s  status {native.status}", flush=True)
            self.results.append(result)
            return
        results = re.search(r"test\(s\) passed|\bpassed\b", native.output)
        if native.status != 0 and not (program.suite and results):
            # Equal failures prove nothing.
            result["equal"] = False
            self.results.append(result)
            last = "\n    ".join((native.output + native.errors).strip().splitlines()[-5:])
            print(f"{program.name:28} FAILS NATIVELY with status {native.status}\n    {last}", flush=True)
            return
        copies = 2 if self.arguments.two else 1
        with ThreadPoolExecutor(copies) as pool:
            remotes = list(pool.map(lambda c: program.run(self.place(True, c)), range(copies)))
        expected = program.visible(native)
        wrong = [r for r in remotes if program.visible(r) != expected]
        seconds = max(r.seconds for r in remotes)
        result.update(aviary_s=round(seconds, 3), ratio=round(seconds / max(native.seconds, 1e-3), 3), equal=not wrong)
        self.results.append(result)
        verdict = "equal" if not wrong else "DIFFERENT"
        print(f"{program.name:28} native {native.seconds:7.2f} s  aviary {seconds:7.2f} s  x{result['ratio']:<6} {verdict}", flush=True)
        if wrong:
            shown = difference(expected, program.visible(wrong[0]))
            last = "\n".join(wrong[0].errors.strip().splitlines()[-15:])
            print("    " + (shown + "\n" + last).replace("\n", "\n    "), flush=True)

    def summary(self):
        by_kind = {}
        for r in self.results:
            # A program that is over in a moment measures the start of processes.
            if r.get("equal") and r["kind"] != "own" and r["native_s"] >= 0.5:
                by_kind.setdefault(r["kind"], []).append(r["ratio"])
        return {k: round(math.exp(sum(map(math.log, v)) / len(v)), 3) for k, v in by_kind.items()}


def select(arguments):
    programs = [p for p in catalog() if arguments.runtime in p.runtimes]
    if arguments.only:
        return [p for p in programs if any(p.name.startswith(o) for o in arguments.only)]
    return [p for p in programs if p.quick] if arguments.quick else programs


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="what fits into a few minutes")
    parser.add_argument("--runtime", choices=RUNTIMES, default="pocl")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--two", action="store_true", help="two copies at once")
    parser.add_argument("--native", action="store_true", help="natively only")
    parser.add_argument("--option", action="append", default=[], metavar="OPTION", help="passed to `aviary run`")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def main():
    arguments = parse()
    if vendor_folder(arguments.runtime) is None:
        print(f"skipped: the {arguments.runtime} runtime is not installed")
        return 0
    if not arguments.native and not AVIARY.exists():
        sys.exit(f"{AVIARY} is missing: run ./x setup")
    with tempfile.TemporaryDirectory(prefix="aviary-opencl-") as folder:
        comparison = Comparison(arguments, Path(folder))
        for program in select(arguments):
            comparison.compare(program)
    different = [r["name"] for r in comparison.results if r["equal"] is False]
    means = comparison.summary()
    for kind, mean in means.items():
        print(f"geometric mean, {kind}: {mean}")
    print(f"{len(comparison.results) - len(different)} equal, {len(different)} different")
    if arguments.json:
        machine = {"processors": os.cpu_count(), "load": os.getloadavg()[0], "runtime": arguments.runtime}
        Path(arguments.json).write_text(json.dumps({**machine, "means": means, "programs": comparison.results}, indent=1) + "\n")
    return min(len(different), 100)


if __name__ == "__main__":
    sys.exit(main())
