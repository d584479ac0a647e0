#!/usr/bin/env python3
"""What keeps usual GPU programs from moving, parking and swapping, by name, and whether they come back equal.

  bench/cuda_usual.py [PROGRAM...] [--json FILE]

Each program of bench/cuda/usual runs with the APIs that `aviary run` offers by default. It works once, its session is
asked whether it could move (`aviary migrate --check`), it is parked, and it works again, which brings it back; its memory is
swapped out, and it works once more: the results must be those of a native run. A program that cannot run here (a module is missing) is listed so. One card, four minutes;
reads and changes no setting of it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.node import running  # noqa: E402
from harness.process import AVIARY  # noqa: E402

USUAL = ROOT / "bench/cuda/usual"
# Seconds for which an attempt is repeated, and after which a program hangs.
ATTEMPT_S, HANG_S = 1, 300


class Program:
    """A program that prints `ready RESULT`, then `done RESULT` for each line of its standard input."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def result(self, word):
        """The result of a line that begins with `word`; None: the program has ended."""
        for line in self.process.stdout:
            if line.startswith(word + " "):
                return line.split(" ", 1)[1].strip()
        return None

    def work(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.result("done")

    def end(self):
        """The last line of its errors."""
        self.process.stdin.close()
        errors = self.process.stderr.read().strip().splitlines()
        self.process.wait(timeout=HANG_S)
        return errors[-1] if errors else ""


def ask(node, *words):
    done = subprocess.run([AVIARY, *words, "--server", node.address, "--json"], capture_output=True, text=True, timeout=HANG_S, check=False)
    return json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}


def told(answer, word):
    """One attempt in words: what was done and how long the program was paused, or the node's reason."""
    if word not in answer:
        return answer.get("refused", {}).get("reason") or str(answer.get("error", answer))
    return f"{word}, {answer[word]['bytes'] >> 20} MiB of state, paused {answer[word].get('stood_us', 0) / 1000:.0f} ms"


def told_swap(answer):
    """The same of a session whose memory leaves."""
    if answer.get("place") != "out":
        return answer.get("refused") or str(answer.get("error", answer))
    figures = answer["figures"]
    return f"out, {answer['bytes'] >> 20} MiB, copied in {figures['copy_us'] / 1000:.0f} ms"


def device_bytes():
    """Of all devices, what is used, as the driver tells everybody. Only reads."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(int(line) << 20 for line in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())


def tried(node, path):
    """The row of one program."""
    program = Program([AVIARY, "run", "--server", node.address, "--", sys.executable, path])
    first = program.result("ready")
    if first is None:
        return {"runs": False, "error": program.end()}
    session = next(s["session"] for s in node.report()["sessions"] if s["api"] == "cuda")
    check = ask(node, "migrate", str(session), "--check", "--wait", str(ATTEMPT_S))
    park = ask(node, "park", str(session), "--wait", str(ATTEMPT_S))
    begun = time.monotonic()
    second = program.work()
    back_s = time.monotonic() - begun
    before = device_bytes()
    swap = ask(node, "swap", "out", str(session), "--wait", str(ATTEMPT_S))
    freed = before - device_bytes()
    begun = time.monotonic()
    third = program.work()
    swapped = {"swapped": swap.get("place") == "out", "swap": told_swap(swap), "freed_mib": freed >> 20, "in_s": time.monotonic() - begun}
    row = {"runs": True, "movable": "movable" in check, "check": told(check, "movable"), "parked": "parked" in park,
           "park": told(park, "parked"), "back_s": back_s, **swapped, "results": [first, second, third]}
    row["end"] = program.end()
    return row


def natively(path):
    program = Program([sys.executable, path])
    results = [program.result("ready")]
    if results[0] is not None:
        results += [program.work(), program.work()]
    program.end()
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    paths = sorted(USUAL.glob("*.py"))
    unknown = set(arguments.programs) - {path.stem for path in paths}
    if unknown:
        raise SystemExit(f"no program {', '.join(sorted(unknown))} in {USUAL}; there is: {' '.join(path.stem for path in paths)}")
    rows, wrong = {}, 0
    with running(dict(os.environ), "--api-dir", ROOT / "target/aviary") as node:
        for path in paths:
            if path.name.startswith("_") or (arguments.programs and path.stem not in arguments.programs):
                continue
            expected, row = natively(path), tried(node, path)
            row["equal"] = row.get("results") == expected
            rows[path.stem] = row
            if row["runs"]:
                wrong += not row["equal"]
                equal = "equal" if row["equal"] else f"{row['results']} instead of {expected}"
                print(f"{path.stem}: {row['check']}; {row['park']}; next work {row['back_s']:.2f} s; "
                      f"{row['swap']}, {row['freed_mib']} MiB free, next work {row['in_s']:.2f} s; {equal}", flush=True)
            else:
                print(f"{path.stem}: does not run here: {row['error']}", flush=True)
    ran = [row for row in rows.values() if row["runs"]]
    print(f"{len(ran)} programs: {sum(row['movable'] for row in ran)} movable, {sum(row['parked'] for row in ran)} parked, "
          f"{sum(row['swapped'] for row in ran)} swapped out, {wrong} differ")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
