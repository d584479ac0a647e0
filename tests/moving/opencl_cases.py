"""The programs of OpenCL's tests on PoCL, moved after every n-th call: what they show is what their native runs show."""

import sys

from attempts import LIMIT_S, Attempts
from harness.process import ROOT, Skipped, Wrong
from programs import PASSING

sys.path.insert(0, str(ROOT / "apis/opencl/tests"))

from catalog import catalog  # noqa: E402
from runtimes import Place, vendor_folder  # noqa: E402

EVERY = (1, 7, 100)
# Of programs that are not our own, which make many calls.
EVERY_OF_OTHERS = (100,)
# Of the programs of the sample.
SAMPLE = {"moved": 7, "transfers": 7, "printing": 7, "svm": 1}
# Programs of the sample that are parked, too.
PARKED = {"moved": 7}
# And those whose memory is swapped.
SWAPPED = {"moved": 1, "crowd": 1, "images": 7, "mapping": 1, "transfers": 7}
# A command waits for the application.
WAITS = "devices still execute earlier calls"
# A program lives whose build has failed: its log would be lost.
FAILED_BUILD = "the state of an object of type cl_program cannot be saved"
# Programs that make calls because of which a session stays, and the reasons.
LASTING = {
    "moved": (FAILED_BUILD,),
    "includes": (FAILED_BUILD,),
    "programs": (FAILED_BUILD,),
    "slicing": ("it has called clCloneKernel",),
    # Of PoCL 3.1 a command buffer's queue is something that is not the queue, and no other call tells of it.
    "extensions": ("the commands in it are not recorded", "clGetCommandBufferInfoKHR, repeated in the new API server"),
}
# Reasons for not swapping: nothing of a session leaves while it has mapped all that it has.
KEEPS = ("objects of type cl_mem keep their device memory", "an object of type cl_mem keeps its device memory")
# Programs that do not run with moves.
EXCLUDED = {}


def brute_force(tools, program, every, kind="move"):
    if vendor_folder("pocl") is None:
        raise Skipped("PoCL is not installed")
    native = program.run(Place("pocl", False, tools.library / "opencl-native"))
    options = ("--log-level", "debug")
    place = MovingPlace("pocl", True, tools.library / f"opencl-{program.name}-{kind}-{every}", options)
    place.every, place.kind = every, kind
    moved = program.run(place)
    attempts = Attempts(tools, f"opencl/{program.name}", every, kind, moved.errors)
    if program.visible(moved) != program.visible(native):
        raise Wrong(f"natively {program.visible(native)!r}, moved {program.visible(moved)!r}\n{attempts.last_lines()}")
    attempts.expected((*PASSING, WAITS, *LASTING.get(program.name, ()), *(KEEPS if kind == "swap" else ())))


class MovingPlace(Place):
    """A place whose sessions move after every so many calls."""

    every = 1
    kind = "move"

    def run(self, arguments, limit=0, **options):
        return super().run(arguments, limit=LIMIT_S, **options)

    def environment(self):
        return {**super().environment(), "AVIARY_TEST_MOVE_EVERY": str(self.every), "AVIARY_TEST_MOVE_KIND": self.kind}


def cases(long):
    programs = {
        program.name: program for program in catalog()
        if program.quick and "pocl" in program.runtimes and program.name not in EXCLUDED
    }
    times = {name: EVERY if program.kind == "own" else EVERY_OF_OTHERS for name, program in programs.items()}
    chosen = [(name, every) for name in programs for every in times[name]] if long else SAMPLE.items()
    parked = chosen if long else PARKED.items()
    moved = {
        f"opencl-{name}-{every}": lambda tools, p=programs[name], n=every: brute_force(tools, p, n) for name, every in chosen
    }
    swapped = chosen if long else SWAPPED.items()
    moved |= {
        f"swapped-opencl-{name}-{every}": lambda tools, p=programs[name], n=every: brute_force(tools, p, n, "swap")
        for name, every in swapped
    }
    return moved | {
        f"parked-opencl-{name}-{every}": lambda tools, p=programs[name], n=every: brute_force(tools, p, n, "park")
        for name, every in parked
    }
