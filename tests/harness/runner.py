"""Runs the parts of `./x test`, as many at a time as the CPUs can serve, and adds up what they count and cost."""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from harness.costs import KEPT, OWN, Costs
from harness.parts import QUIET, all_parts, chosen
from harness.process import ROOT

# Parts that run at the same time, at most: each has processes and memory of its own.
AT_ONCE = 4
SUPERVISE = Path(__file__).with_name("supervise.py")
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed$")
CARGO_COUNTS = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed", re.M)
# What names a failed check, in scripts, cargo's programs and Python's.
FAILURES = re.compile(r"^(FAIL\b.*|test .* FAILED|thread '.*' .*panicked at .*|FAILED .*|\w*Error: .*)$")
# Lines of it that the summary repeats, with the one after each; characters of a line.
SHOWN, WIDTH = 8, 300
# So many failed parts may be the machine's doing; more are the tree's.
MOST_AGAIN = 4


@dataclass
class Result:
    passed: int
    failed: int
    skipped: list
    cpu: float
    seconds: float
    output: str


def counted(output, status):
    """What a part has counted: its last line, or what cargo's test programs say. One that fails without a count is a failure, one
    that ends well without a count a success."""
    lines = output.rstrip().splitlines()
    own = [match for match in map(COUNTS.match, reversed(lines)) if match][:1]
    counts = [tuple(map(int, match.groups())) for match in own] or [tuple(map(int, pair)) for pair in CARGO_COUNTS.findall(output)]
    passed, failed = (sum(column) for column in zip(*counts)) if counts else (0, 0)
    if status and not failed:
        failed = 1
    if not status and not counts:
        passed = 1
    return passed, failed


def named_failures(output):
    """The lines that say what failed, each with the line behind it."""
    lines = output.splitlines()
    at = [number for number, line in enumerate(lines) if FAILURES.match(line)][:SHOWN]
    wanted = sorted({number for first in at for number in (first, first + 1) if number < len(lines)})
    return [lines[number][:WIDTH] for number in wanted]


def run(part, cpu_limit=0, quiet=QUIET):
    """Runs a part to its end; what it has started ends with it. `cpu_limit` in seconds; 0: none."""
    python = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **part.environment, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": python}
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output, os.fdopen(reading, encoding="utf-8") as told:
        process = subprocess.Popen(
            [sys.executable, SUPERVISE, str(writing), str(cpu_limit), str(quiet), *part.command],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[writing],
        )
        os.close(writing)
        words = told.read()
        process.wait()
        end = json.loads(words) if words else {"status": 1, "cpu": 0.0, "wall": 0.0}
        output.seek(0)
        text = output.read()
    passed, failed = counted(text, end["status"])
    skipped = [line for line in text.splitlines() if line.lower().startswith("skip")]
    return Result(passed, failed, skipped, end["cpu"], end["wall"], text)


def unbuilt(part, builds):
    """The result of a part for which something could not be built."""
    return Result(0, 1, [], 0.0, 0.0, f"FAIL {part.name} did not run: {', '.join(builds)} failed")


def startable(waiting, running, done, costs, cpus, at_once):
    """The part that begins next, or None: parts that build first, then the longest of those whose builds are done and whose share
    of the CPUs is free. `done`: name -> if it passed."""
    if len(running) >= at_once:
        return None
    free = cpus - sum(costs.share(part.name) for part in running)
    ready = [part for part in waiting if all(name in done for name in part.after)]
    ready.sort(key=lambda part: (not part.builds, -costs.wall(part.name)))
    return next((part for part in ready if not running or costs.share(part.name) <= free + 0.05), None)


class Runner:
    """What is left to run, and what has been found."""

    def __init__(self, parts, tell=print, costs=None, cpus=None, no_skips=False):
        self.waiting, self.results, self.tell = list(parts), {}, tell
        self.costs, self.cpus, self.no_skips = costs or Costs({}), cpus or os.cpu_count(), no_skips
        # Builds that are no part of this run are done.
        names = {part.name for part in parts}
        self.done = {name: True for part in parts for name in part.after if name not in names}
        self.running = []
        # name -> the result of before, of parts that have passed the second time.
        self.unsteady = {}
        self.changed = threading.Condition()

    def next_part(self, at_once):
        """The next part that may begin now; None when there is nothing left. Waits while nothing may begin."""
        with self.changed:
            while self.waiting:
                part = startable(self.waiting, self.running, self.done, self.costs, self.cpus, at_once)
                if part:
                    self.waiting.remove(part)
                    self.running.append(part)
                    return part
                self.changed.wait()
            return None

    def work(self, at_once):
        while part := self.next_part(at_once):
            try:
                failed = [name for name in part.after if not self.done[name]]
                result = unbuilt(part, failed) if failed else run(part, 0 if part.builds else self.costs.limit(part.name))
            except Exception as error:  # pylint: disable=broad-except
                result = Result(0, 1, [], 0.0, 0.0, f"FAIL {part.name} did not run: {error!r}")
            with self.changed:
                self.finish(part, result)
                self.changed.notify_all()

    def finish(self, part, result):
        if self.no_skips:
            result.failed += len(result.skipped)
        self.running.remove(part)
        self.results[part.name] = result
        self.done[part.name] = not result.failed
        if not result.failed:
            self.costs.learn(part.name, result.cpu, result.seconds)
        self.show(part, result)

    def again(self, parts):
        """Runs each part that has failed once more, alone. One that passes then is unsteady, which is told and is no failure: it
        depends on what ran beside it. Nothing is done if more have failed than a busy machine explains."""
        failed = [part for part in parts if not part.builds and self.results[part.name].failed]
        if len(failed) > MOST_AGAIN or any(not self.done[name] for part in parts for name in part.after):
            return
        for part in failed:
            self.tell(f"{part.name} again, alone:")
            before = self.results[part.name]
            self.waiting = [part]
            self.work(1)
            if not self.results[part.name].failed:
                self.unsteady[part.name] = before

    def show(self, part, result):
        """One line; all that a part has printed if something failed."""
        counts = f"{result.passed} passed, " + (f"{result.failed} FAILED, " if result.failed else "")
        if result.failed:
            self.tell(f"--- {part.name} ---\n{result.output.rstrip()}\n--- end of {part.name} ---")
        self.tell(f"{'FAIL' if result.failed else 'ok  '} {part.name}: {counts}{result.cpu:.0f} s of CPU in {result.seconds:.0f} s")
        figures = [line for line in result.output.splitlines() if line.startswith("figure: ")]
        for line in [*result.skipped, *figures]:
            self.tell(f"     {line}")

    def run(self, at_once=AT_ONCE):
        """Runs everything; returns how much passed and failed."""
        workers = [threading.Thread(target=self.work, args=(at_once,)) for _ in range(at_once)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return self.totals()

    def totals(self):
        """How much has passed and failed."""
        return sum(r.passed for r in self.results.values()), sum(r.failed for r in self.results.values())


def prepared():
    """CPU and wall seconds since this process began, as ./x, to set up what the tests need."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = int(Path("/proc/self/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return used.ru_utime + used.ru_stime, time.clock_gettime(time.CLOCK_BOOTTIME) - started


def summary(results, before, wall):
    """CPU seconds by what they went to, and the time that has passed."""
    setup, waited = before
    built = sum(result.cpu for name, result in results.items() if name.startswith("build-"))
    ran = sum(result.cpu for result in results.values()) - built
    return (f"CPU: {setup:.0f} s to set up, {built:.0f} s to build tests, {ran:.0f} s of tests: {setup + built + ran:.0f} s; "
            f"wall: {waited:.0f} s to set up, {wall:.0f} s of tests: {(waited + wall) / 60:.1f} min")


def main(arguments):
    parser = argparse.ArgumentParser(prog="./x test", description="Run the tests; the last line is `N passed, N failed`.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these parts (default: all but the long ones)")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--long", action="store_true", help="the long parts, too")
    parser.add_argument("--no-skips", action="store_true", help="what is skipped has failed")
    parser.add_argument("--once", action="store_true", help="what fails does not run a second time, alone")
    parser.add_argument("--keep-costs", action="store_true", help="write what the parts cost to tests/harness/costs.json")
    parser.add_argument("--with-torch", action="store_true", help="PyTorch, too, on a driver without a device (2.8 GB to fetch)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"how many parts run at the same time (default: {AT_ONCE})")
    options = parser.parse_args(arguments)
    if options.list:
        for part in all_parts():
            print(f"{part.name:22}", *(["long"] if part.long else []), *(f"after {name}" for name in part.after))
        return 0
    before, began, costs = prepared(), time.monotonic(), Costs.read()
    parts = chosen(options.names, options.long)
    runner = Runner(parts, lambda text: print(text, flush=True), costs, no_skips=options.no_skips)
    runner.run(options.at_once)
    if not options.once:
        runner.again(parts)
    passed, failed = runner.totals()
    costs.write(OWN, costs.known)
    if options.keep_costs:
        costs.write(KEPT, [part.name for part in all_parts()])
    print()
    for name, result in runner.unsteady.items():
        print(f"{name}: unsteady: {result.failed} failed beside other parts, none alone", *named_failures(result.output), sep="\n     ")
    for name, result in runner.results.items():
        if result.failed:
            print(f"{name}: {result.failed} failed", *named_failures(result.output), sep="\n     ")
    print(summary(runner.results, before, time.monotonic() - began))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
