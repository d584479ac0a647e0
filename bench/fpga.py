"""The simulated FPGA card: device cycles, never wall clock. The figures are the same in each run."""

import json
import subprocess
import sys

from harness.process import ROOT, Failure, Skipped

sys.path.append(str(ROOT / "fpga/simulation"))
import tools  # noqa: E402

ALL = sorted(path.parent.name for path in ROOT.glob("fpga/accelerators/*/golden.py"))
# Those with a job without end: it says how far it is.
ACCELERATORS = [name for name in ALL if name != "nlb"]
# The two of the paper that saturate the link, and that wait for each read.
MICRO = ("ll", "mb")
PORTS = (1, 2, 4, 8)
POLICIES = ("round-robin", "slices", "priority", "fair")


def latency():
    figures = {"fpga.ll.added_cycles": "cycles that the monitor with an 8-port binary tree adds to a read, most of four base latencies (target <= 12)"}
    figures |= {f"fpga.ll.added_cycles.{base}": f"... base latency {base}" for base in (100, 200, 300, 400)}
    return figures | {f"fpga.ll.added_cycles.arity{arity}": f"... with a tree of arity {arity}, base latency 100" for arity in (4, 8)}


def copies():
    figures = {}
    for name in ACCELERATORS:
        if name != "ll":
            figures[f"fpga.{name}.vs_passthrough"] = f"work per cycle of {name} against the build without a monitor (target >= 0.99)"
        least = " (target >= 0.96 at 8)" if name == "mb" else ""
        figures |= {f"fpga.{name}.scale.{ports}": f"work of {ports} copies of {name} against one{least}" for ports in PORTS}
        figures[f"fpga.{name}.fair"] = f"eight copies of {name}: (max - min) / mean of their work (target <= {0.001 if name in MICRO else 0.01})"
        figures[f"fpga.{name}.scale_error"] = "... work against what they ask for or the link carries, largest relative error (target <= 0.05)"
    return figures | {"fpga.ll.latency.8": "cycles per node of the slowest of eight LL against one (target <= 1.09)"}


def colocated():
    least = {name: 0.98 for name in ("ll", "grn", "btc")}
    return {f"fpga.{name}.colocated": f"MB beside {name} against alone (target >= {least.get(name, 0.495)})" for name in ACCELERATORS}


def weights():
    return {
        "fpga.weights_error": "weights 1:2:3:4 of ports: largest relative error of a share (target <= 0.01)",
        "fpga.rate_excess": "lines above a rate limit in any 1,024 cycles, most of three limits (target <= 4)",
    }


def switches():
    figures = {}
    for name in ACCELERATORS:
        most = 0.003 if name in MICRO else 0.01
        figures[f"fpga.{name}.switch_cycles"] = f"cycles of work that a switch between two {name} costs"
        figures |= {f"fpga.{name}.temporal.{count}": f"part of the work that {count} of them lose in turns of 10 ms (target <= {most})"
                    for count in ((2, 4, 8, 16) if name in MICRO else (2, 16))}
        if name in MICRO:
            figures[f"fpga.{name}.temporal.10ms"] = "... measured in turns of 10 ms, not computed from shorter ones"
    return figures


def slices():
    kinds = {"mean": ("mean", 0.001), "worst": ("largest", 0.003)}
    return {f"fpga.slices.{policy}.{kind}_error": f"running cycles against what is due after two rounds, {word} relative error (target <= {most})"
            for policy in POLICIES for kind, (word, most) in kinds.items()}


def iotlb():
    return {
        "fpga.iotlb.nogap": "eight MB in 128 MB each: lines per cycle without a gap between slices (shape of the model only)",
        "fpga.iotlb.gap": "... with one",
        "fpga.iotlb.gap_gain": "... the second against the first (target >= 15)",
        "fpga.iotlb.fixed_gap_16": "sixteen MB on eight ports with a fixed gap between slices: lines per cycle",
        "fpga.iotlb.placed_16": "... as the mediator places them, by port",
        "fpga.iotlb.placed_16_misses": "... misses of the IOTLB after each has touched its pages (target 0)",
    }


def of_sets(name, what):
    sets = {"2M": (16, 256, 1024, 2048, 4096, 8192), "4K": (1, 2, 4, 16, 64, 128)}
    return {f"fpga.{name}.pages_{page}.{size}MB.{ports}": f"{what} of {ports} {name.upper()} with {size} MB together in pages of {page} (shape of the model only)"
            for page, sizes in sets.items() for size in sizes for ports in PORTS}


def worksets():
    return of_sets("mb", "lines per cycle")


def walks():
    return of_sets("ll", "cycles per node")


# Of an Arria 10 GX1150, the paper's: ALMs, and kilobits of memory blocks.
ALMS, MEMORY_KBIT = 427_200, 2_713 * 20
AREA = "ALMs of {} in percent of a GX1150's, at least; synthesized for Cyclone V, not placed and routed"
BRAM = "... its blocks of memory, in percent of the device's bits"
MODULES = ("monitor", "auditor", "audit_reads", "audit_writes", "mux_node", "axi_edge", "mmio_router", "vcu")


def depth():
    figures = {}
    for module in MODULES:
        figures[f"fpga.depth.{module}"] = f"levels of logic of {module}, synthesized for Cyclone V, not placed and routed"
        figures[f"fpga.delay.{module}"] = "... its longest path in ns, without wires"
    return figures | {"fpga.area.monitor": AREA.format("the monitor with eight ports"), "fpga.bram.monitor": BRAM}


def area():
    figures = {}
    for name in ALL:
        figures[f"fpga.area.{name}"] = AREA.format(name)
        figures[f"fpga.bram.{name}"] = BRAM
        figures[f"fpga.multipliers.{name}"] = "... its multipliers"
        figures[f"fpga.depth.{name}"] = "... its levels of logic"
    return figures


SECTIONS = {function.__name__: function() for function in (latency, copies, colocated, weights, switches, slices, iotlb, worksets, walks, depth, area)}
FIGURES = {name: meaning for figures in SECTIONS.values() for name, meaning in figures.items()}


def measured(section, quick):
    """The figures of one section, each shown as it comes."""
    command = ["cargo", "run", "--release", "--quiet", "-p", "aviary-fpga", "--example", "measure", "--", *["--quick"] * quick, section]
    figures = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(f"  {line.rstrip()}", file=sys.stderr, flush=True)
            name, value = line.split()
            figures[name] = float(value)
    if process.returncode == 2:
        raise Skipped("the FPGA tools are not installed; ./x setup installs them")
    if process.returncode:
        raise Failure(f"section {section} of the FPGA's measurements ended with {process.returncode}")
    return figures


def synthesized(names):
    """By yosys: levels and delays, and the area of what is whole."""
    if not tools.python():
        raise Skipped("the FPGA tools are not installed; ./x setup installs them")
    figures = {}
    for name in names:
        result = subprocess.run([str(tools.python()), str(ROOT / "fpga/depth.py"), name], capture_output=True, text=True, check=False)
        found = [json.loads(line.removeprefix("depth ")) for line in result.stdout.splitlines() if line.startswith("depth ")]
        if result.returncode or not found:
            raise Failure(f"{name} was not synthesized:\n{(result.stdout + result.stderr)[-2000:]}")
        told = found[0]
        print(f"  {name}: {told['levels']} levels: {', '.join(told['path'])}", file=sys.stderr, flush=True)
        figures[f"fpga.depth.{name}"] = told["levels"]
        if name in MODULES:
            figures[f"fpga.delay.{name}"] = told["ns"]
        if name == "monitor" or name in ALL:
            figures |= {f"fpga.area.{name}": 100 * told["alms"] / ALMS, f"fpga.bram.{name}": 100 * 10 * told["blocks"] / MEMORY_KBIT}
        if name in ALL:
            figures[f"fpga.multipliers.{name}"] = told["multipliers"]
    return figures


SYNTHESIZED = {"depth": MODULES, "area": ALL}


def measurement(section):
    """The function that measures a section."""
    if section in SYNTHESIZED:
        return lambda _quick: synthesized(SYNTHESIZED[section])
    return lambda quick: measured(section, quick)


def benchmarks():
    """Name of a benchmark, the function that measures it, and its figures."""
    return {f"fpga.{section}": (measurement(section), list(figures)) for section, figures in SECTIONS.items()}
