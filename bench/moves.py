"""Figure 14 of AvA's paper: programs of OpenCL on PoCL while their sessions move at random points, and how long they stand.

A program runs again and again until it has moved often enough; each run must show what the native one shows. The times are the
node's own, and those that both API servers report."""

import collections
import random
import statistics
import sys
import tempfile
import threading
from pathlib import Path

import measure
from harness.node import running
from harness.process import ROOT, Failure, Skipped

sys.path.insert(0, str(ROOT / "apis/opencl/tests"))

# Moves of each program.
MOVES, MOVES_QUICK = 200, 20
# The longest pause between two moves, in seconds; pauses are as long as chance will have it.
LONGEST_PAUSE_S = 0.2
# Runs of a program after which it is not begun anew, however few moves there were.
MOST_RUNS = 60
# As the node names them.
PHASES = ("prepare", "stop", "drain", "capture", "rebuild", "stood")
# Name among the figures, and in the catalog of OpenCL's tests.
PROGRAMS = {
    "clpeak": "clpeak-transfer",
    "hashcat": "hashcat-md5",
    "clblast": "clblast-xaxpy",
    "ffmpeg": "ffmpeg-unsharp",
    "pyopencl": "pyopencl-wrapper",
}
# Of the distribution of a phase.
PARTS = {
    "median": statistics.median,
    "p90": lambda values: sorted(values)[len(values) * 9 // 10],
    "max": max,
}

FIGURES = {
    "move.PROGRAM.moves": "moves of the program at random points, on PoCL",
    "move.PROGRAM.runs": "... in so many runs of it",
    "move.PROGRAM.different": "... runs that did not show what a native one shows (target 0)",
    "move.PROGRAM.refused": "... attempts that were given up, after which the session went on where it was",
    "move.PROGRAM.state_bytes": "... bytes of state, median",
    "move.PROGRAM.prepare_ms": "... until the new API server was prepared, while the program ran (_p90, _max: of the distribution)",
    "move.PROGRAM.stop_ms": "... until all threads stood",
    "move.PROGRAM.drain_ms": "... until the device had done everything",
    "move.PROGRAM.capture_ms": "... until the state was written",
    "move.PROGRAM.rebuild_ms": "... until it was made anew",
    "move.PROGRAM.stood_ms": "... from the order to stop to the order to go on: what the program notices (target <= 20)",
}


class Mover(threading.Thread):
    """Moves whatever session a node has, at random points, until it is told to stop."""

    def __init__(self, node, wanted, chance):
        super().__init__()
        self.node, self.wanted, self.chance = node, wanted, chance
        self.over = threading.Event()
        self.moved, self.refused = [], collections.Counter()

    def is_done(self):
        return len(self.moved) >= self.wanted

    def run(self):
        while not self.over.wait(self.chance.uniform(0, LONGEST_PAUSE_S)) and not self.is_done():
            report = self.node.ask("ps")
            for session in report.get("sessions", [])[:1]:
                self.move(session["session"])

    def move(self, session):
        begun = self.node.ask({"migrate": {"session": session, "check": False, "stop_ms": 2000}})
        # A session that has just ended has no number.
        status = {"underway": ""} if "number" in begun else {}
        while "underway" in status and not self.over.wait(0.002):
            status = self.node.ask({"movestatus": begun["number"]})
        if "moved" in status:
            self.moved.append(status["moved"])
        elif "refused" in status:
            self.refused[status["refused"]["reason"]] += 1


def move_program(name, program, wanted):
    from runtimes import Place

    with tempfile.TemporaryDirectory(prefix="aviary-move-") as work:
        native_place = Place("pocl", False, Path(work) / "native")
        # The second time all kernels are in the cache.
        native = [program.run(native_place) for _ in range(2)][-1]
        expected, different, runs = program.visible(native), 0, 0
        environment = native_place.environment()
        passed = [f"--pass-environment={pattern}" for pattern in ("POCL_*", "OCL_*")]
        with running(environment, "--sandbox", "off", *passed) as node:
            mover = Mover(node, wanted, random.Random(name))
            mover.start()
            try:
                while not mover.is_done() and runs < MOST_RUNS:
                    place = Place("pocl", True, Path(work) / "moved", ("--server", node.address))
                    outcome = program.run(place)
                    runs += 1
                    if program.visible(outcome) != expected:
                        different += 1
                        print(f"{name}: differs\n{outcome.output[-1500:]}\n{outcome.errors[-1500:]}", file=sys.stderr)
            finally:
                mover.over.set()
                mover.join()
            node.settle()
    return figures(name, mover, runs, different)


def figures(name, mover, runs, different):
    for reason, count in mover.refused.most_common():
        print(f"  {name}: not moved {count} times: {reason}", file=sys.stderr)
    result = {
        f"move.{name}.moves": len(mover.moved),
        f"move.{name}.runs": runs,
        f"move.{name}.different": different,
        f"move.{name}.refused": sum(mover.refused.values()),
    }
    if not mover.moved:
        return result
    result[f"move.{name}.state_bytes"] = statistics.median(moved["bytes"] for moved in mover.moved)
    for phase in PHASES:
        times = [moved[f"{phase}_us"] / 1000 for moved in mover.moved]
        for part, of in PARTS.items():
            suffix = "" if part == "median" else f"_{part}"
            result[f"move.{name}.{phase}_ms{suffix}"] = of(times)
    return result


def moves(quick):
    from catalog import catalog
    from runtimes import vendor_folder

    if vendor_folder("pocl") is None:
        raise Skipped("PoCL is not installed")
    known = {program.name: program for program in catalog()}
    missing = [there for there in PROGRAMS.values() if there not in known]
    if missing:
        raise Failure(f"not installed: {' '.join(missing)} (./x setup)")
    measure.BUILD.mkdir(parents=True, exist_ok=True)
    result = {}
    for name, there in PROGRAMS.items():
        result |= move_program(name, known[there], MOVES_QUICK if quick else MOVES)
    wrong = [name for name in PROGRAMS if result[f"move.{name}.different"]]
    if wrong:
        raise Failure(f"results differ from native ones: {' '.join(wrong)}")
    return result


def meaning(figure):
    """What a figure's name stands for."""
    words = figure.split(".")
    if len(words) != 3 or words[0] != "move":
        return ""
    measure_of = words[2].removesuffix("_p90").removesuffix("_max")
    return FIGURES.get(f"move.PROGRAM.{measure_of}", "")
