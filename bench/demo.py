#!/usr/bin/env python3
"""Unmodified programs, natively and through Aviary: are the results equal, and what does it cost?"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parent.parent
DRIVER = ROOT / "apis/opencl/tests/programs.py"
# Descriptions of the programs, for people who do not know them.
SHOWN = {
    "clinfo": "lists platforms and devices",
    "clpeak-latency": "measures how long a kernel takes to start",
    "hashcat-md5": "recovers a password from its MD5 hash",
    "clblast-xscal": "CLBlast's own test of scaling a vector",
    "clblast-xgemv": "CLBlast's own test of matrix times vector",
    "ffmpeg-avgblur": "blurs a clip; MD5 of every frame",
    "ffmpeg-unsharp": "sharpens a clip; MD5 of every frame",
}


def compare(names):
    """Runs the OpenCL tests' driver; returns its results by program."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "programs.json"
        only = [word for name in names for word in ("--only", name)]
        done = subprocess.run([sys.executable, DRIVER, "--json", output, *only], capture_output=True, text=True, check=False)
        if not output.exists():
            sys.exit(f"demo: {DRIVER.relative_to(ROOT)} failed:\n{done.stdout}{done.stderr}")
        results = json.loads(output.read_text(encoding="utf-8"))["programs"]
    return {result["name"]: result for result in results if result["name"] in names}, done.stdout


def table(results):
    print(f"\n  {'program':16} {'what it does':44} {'result':10} {'native':>9} {'Aviary':>9} {'ratio':>7}")
    print("  " + "-" * 99)
    for name, what in SHOWN.items():
        result = results.get(name)
        if result is None:
            print(f"  {name:16} {what:44} not installed")
            continue
        verdict = "equal" if result["equal"] else "DIFFERENT"
        native, aviary = result["native_s"], result["aviary_s"]
        print(f"  {name:16} {what:44} {verdict:10} {native:7.2f} s {aviary:7.2f} s {aviary / max(native, 1e-3):7.2f}")


def main():
    parser = argparse.ArgumentParser(prog="./x demo", description=__doc__)
    parser.add_argument("--details", action="store_true", help="show how results differ")
    arguments = parser.parse_args()
    about = machine.describe()
    print(f"OpenCL on this machine's CPU (PoCL): {about['cpu']}, {about['cpus']} CPUs, load {about['load']}, {about['date']}")
    print("Every program runs as it was installed: natively, then with `aviary run -- PROGRAM`, where it never loads PoCL.")
    results, details = compare(list(SHOWN))
    table(results)
    equal = sum(1 for result in results.values() if result["equal"])
    print(f"\n  {equal} of {len(results)} programs gave the same result. Times include starting the program and its API server.")
    if arguments.details:
        print(f"\n{details}")
    elif equal != len(results):
        print("  ./x demo --details shows how they differ.")
    return 0 if equal == len(results) and len(results) >= 4 else 1


if __name__ == "__main__":
    sys.exit(main())
