"""What running kernels in parts costs, by the number of parts (FairGV's Table 4), and how long the longest part is."""

import json
import os
import re
import resource
import subprocess

import measure
from harness.process import Failure

# Sub-launches of the product of matrices; 1 is the unsliced launch measured once more: what the figures are uncertain by.
PARTS = (1, 4, 16, 64, 256, 1024)
SLICE_MS = 6
SIZE, SIZE_QUICK = 768, 512
LOCAL = 8
LAUNCHES = 5
ROUNDS, ROUNDS_QUICK = 8, 2
LONG_SECONDS = 10.0
LONG_GROUPS = 20000


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(program, *arguments, **settings):
    """The time that the program printed, the processor time of all its processes, and what the API server said of sliced launches."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AVIARY_SLICE_")}
    environment |= {"AVIARY_SLICE_" + key: str(value) for key, value in settings.items()}
    command = [str(part) for part in measure.remoted([program, *arguments], "--api", "opencl")]
    before = processor_seconds()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    except subprocess.TimeoutExpired as expired:
        raise Failure(f"slicing was not done after {expired.timeout:.0f} s") from expired
    if done.returncode:
        raise Failure(f"slicing: status {done.returncode}\n{done.stderr[-2000:]}")
    told = re.findall(r"sliced \w+: \d+ work-groups, (\d+) sub-launches, longest ([\d.]+) ms \(\d+ work-groups\), (\d+) longer", done.stderr)
    used = processor_seconds() - before
    return json.loads(done.stdout)["ms"], used, [(int(parts), float(longest), int(late)) for parts, longest, late in told]


def by_parts(program, quick):
    """The fastest of several rounds counts, on both sides: whatever else runs on the machine can only add."""
    size = SIZE_QUICK if quick else SIZE
    groups = (size // LOCAL) ** 2
    settings = {parts: {"GROUPS": groups // parts, "LOG": 1} if parts > 1 else {} for parts in (0, *PARTS)}
    settings["chosen"] = {"MS": SLICE_MS, "LOG": 1}
    fastest, cheapest, told = {}, {}, []
    for _ in range(ROUNDS_QUICK if quick else ROUNDS):
        for name, setting in settings.items():
            time, used, lines = timed(program, "matrix", size, LAUNCHES, **setting)
            fastest[name] = min(time, fastest.get(name, time))
            cheapest[name] = min(used, cheapest.get(name, used))
            if name == "chosen":
                # The first launch tries out how long work-groups take.
                told += lines[1:]
            elif name > 1 and (len(lines) != LAUNCHES + 1 or not 0.9 * name <= lines[-1][0] <= 1.5 * name + 2):
                raise Failure(f"{name} parts were asked for, the API server says {lines}")
    whole, whole_used = fastest.pop(0), cheapest.pop(0)
    results = {f"slicing.{name}.overhead": time / whole - 1 for name, time in fastest.items()}
    results |= {f"slicing.{name}.processor": used / whole_used - 1 for name, used in cheapest.items()}
    if not told:
        raise Failure(f"no launch was sliced with a slice of {SLICE_MS} ms")
    best = min(told, key=lambda line: line[1])
    return results | {"slicing.chosen.parts": best[0], "slicing.chosen.longest_ms": best[1]}


def long_kernel(program, quick):
    """One launch that nothing is known of before."""
    loops = 100
    while (time := timed(program, "long", LONG_GROUPS, loops)[0]) < 300:
        loops *= 2
    loops = int(loops * (3 if quick else LONG_SECONDS) * 1000 / time)
    whole = timed(program, "long", LONG_GROUPS, loops)[0]
    sliced, _, told = timed(program, "long", LONG_GROUPS, loops, MS=SLICE_MS, LOG=1)
    if len(told) != 1:
        raise Failure(f"the long kernel was not sliced: {told}")
    parts, longest, late = told[0]
    return {
        "slicing.long_s": whole / 1000,
        "slicing.long_overhead": sliced / whole - 1,
        "slicing.longest_ms": longest,
        "slicing.late_percent": 100 * late / parts,
    }


def slicing(quick):
    program = measure.compile_c("slicing", "-lOpenCL")
    return by_parts(program, quick) | long_kernel(program, quick)
