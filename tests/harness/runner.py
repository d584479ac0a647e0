"""Runs the parts of `./x test`, two at a time, and adds up what they count."""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

from harness.parts import LIMIT, all_parts, chosen
from harness.process import ROOT

# Parts that run at the same time: most of them wait for processes more than they compute.
AT_ONCE = 2
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed", re.M)
CARGO_COUNTS = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed", re.M)


@dataclass
class Result:
    passed: int
    failed: int
    skipped: list
    seconds: float
    output: str


def counted(output, status):
    """What a part has counted. One that fails without a count is a failure, one that ends well without a count a success."""
    cargo = CARGO_COUNTS.findall(output)
    own = COUNTS.findall(output)[-1:]
    counts = [(int(passed), int(failed)) for passed, failed in cargo or own]
    passed, failed = (sum(column) for column in zip(*counts)) if counts else (0, 0)
    if status and not failed:
        failed = 1
    if not status and not counts:
        passed = 1
    return passed, failed


def run(part, limit=LIMIT):
    """Runs a part to its end; what it has started ends with it."""
    began = time.monotonic()
    environment = {**os.environ, **part.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status, why = 124, f"\nFAIL {part.name}: stopped after {limit} s\n"
            output.write(why)
        output.seek(0)
        text = output.read()
    passed, failed = counted(text, status)
    skipped = [line for line in text.splitlines() if line.lower().startswith("skip")]
    return Result(passed, failed, skipped, time.monotonic() - began, text)


class Runner:
    """What is left to run, and what has been found."""

    def __init__(self, parts, tell=print):
        self.waiting, self.results, self.tell = list(parts), {}, tell
        self.running = []
        self.changed = threading.Condition()

    def next_part(self):
        """The next part that may begin now; None when there is nothing left. Waits while nothing may begin."""
        with self.changed:
            while self.waiting:
                part = startable(self.waiting, self.running)
                if part:
                    self.waiting.remove(part)
                    self.running.append(part)
                    return part
                self.changed.wait()
            return None

    def work(self):
        while part := self.next_part():
            result = run(part)
            with self.changed:
                self.running.remove(part)
                self.results[part.name] = result
                self.show(part, result)
                self.changed.notify_all()

    def show(self, part, result):
        """One line; all that a part has printed if something failed."""
        counts = f"{result.passed} passed, " + (f"{result.failed} FAILED, " if result.failed else "")
        if result.failed:
            self.tell(f"--- {part.name} ---\n{result.output.rstrip()}\n--- end of {part.name} ---")
        self.tell(f"{'FAIL' if result.failed else 'ok  '} {part.name}: {counts}{result.seconds:.0f} s")
        for line in [] if result.failed else result.skipped:
            self.tell(f"     {line}")

    def run(self, at_once=AT_ONCE):
        """Runs everything; returns how much passed and failed."""
        workers = [threading.Thread(target=self.work) for _ in range(at_once)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(r.passed for r in self.results.values()), sum(r.failed for r in self.results.values())


def startable(waiting, running):
    """The first part that may run beside those that run: parts that want to be alone come last, one after the other."""
    if any(part.alone for part in running):
        return None
    together = [part for part in waiting if not part.alone]
    if together:
        return together[0]
    return waiting[0] if not running else None


def main(arguments):
    parser = argparse.ArgumentParser(prog="./x test", description="Run the tests; the last line is `N passed, N failed`.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these parts (default: all but the long ones)")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--long", action="store_true", help="the long parts, too")
    parser.add_argument("--with-torch", action="store_true", help="PyTorch, too, on a driver without a device (2.8 GB to fetch)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"how many parts run at the same time (default: {AT_ONCE})")
    chosen_arguments = parser.parse_args(arguments)
    if chosen_arguments.list:
        for part in all_parts():
            print(f"{part.name:22}", *(word for word in ("alone", "long") if getattr(part, word)))
        return 0
    runner = Runner(chosen(chosen_arguments.names, chosen_arguments.long), lambda text: print(text, flush=True))
    passed, failed = runner.run(chosen_arguments.at_once)
    print()
    for name, result in runner.results.items():
        if result.failed:
            print(f"{name}: {result.failed} failed")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
