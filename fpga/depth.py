"""Levels of logic, delay and area of the monitor's modules and of accelerators, with the interpreter that has yosys: depth.py NAME...

Each is synthesized by itself for Cyclone V (`synth_intel_alm`), without placement and routing: a measure to compare changes by, no
frequency. A level is a LUT or the beginning of a carry chain; delays are those of yosys' models of the cells, without wires. An ALM
has one LUT of 6 inputs, or two of fewer, and four registers: what a device needs at least. Prints one line of JSON for each module,
with the names along the path that has most levels.
"""

import collections
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pyosys
from pyosys import libyosys as yosys

RTL = Path(__file__).resolve().parent / "rtl"
# Of the accelerators, not of the monitor.
OTHERS = {"stream_shell", "job_shell", "plain_register", "image_window"}
FLIP_FLOP_DELAY = 731
# Cells of memory in LUTs that one ALM has, by yosys' description of the family: ten ALMs are 32 words of 20 bits.
MEMORY_CELLS = 2


def delays():
    """Picoseconds from input to output, by cell: from the models of Cyclone V that yosys has."""
    text = (Path(pyosys.__file__).parent / "share/intel_alm/common/alm_sim.v").read_text(encoding="utf-8")
    found = {}
    for part in re.split(r"^module ", text, flags=re.M)[1:]:
        block = re.search(r"`ifdef cyclonev(.*?)`e", part, re.S)
        if block:
            arcs = re.findall(r"\((\w+)\s*=> (\w+)\) = (\d+);", block[1])
            found[re.match(r"\w+", part)[0]] = {(a, b): int(ps) for a, b, ps in arcs}
    return found


def netlist(top):
    """The module as yosys maps it to cells of Cyclone V."""
    # yosys' choices depend on the names of files, and so must not on where the tree lies.
    os.chdir(RTL)
    accelerator = Path("../accelerators") / top / f"{top}.sv"
    others = set() if accelerator.exists() else OTHERS
    files = ["line_pkg.sv", *(path.name for path in sorted(RTL.glob("*.sv")) if path.stem not in others | {"line_pkg"})]
    files += [accelerator] if accelerator.exists() else []
    design = yosys.Design()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "netlist.json"
        for command in (f"read_slang --unroll-limit 10000 --top {top} -I . {' '.join(map(str, files))}",
                        f"synth_intel_alm -family cyclonev -top {top} -noiopad -noclkbuf", f"write_json {out}"):
            yosys.run_pass(command, design)
        return json.loads(out.read_text(encoding="utf-8"))["modules"][top]


def paths(module):
    """The longest path by levels and the longest by time: (levels, ps, cells from its beginning)."""
    arcs_of = delays()
    driver, readers, arrival, waiting = {}, {}, {}, {}
    combinational = {}
    for name, cell in module["cells"].items():
        arcs = arcs_of.get(cell["type"])
        if arcs is None:
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == "output":
                    for bit in bits:
                        arrival[bit] = ((0, ()), (FLIP_FLOP_DELAY, ()))
            continue
        combinational[name] = (cell, arcs)
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "output":
                driver[bits[0]] = name
    for name, (cell, arcs) in combinational.items():
        inputs = {bits[0] for port, bits in cell["connections"].items() if cell["port_directions"][port] == "input" and bits[0] in driver}
        waiting[name] = len(inputs)
        for bit in inputs:
            readers.setdefault(bit, []).append(name)
    ready = [name for name, count in waiting.items() if not count]
    zero = ((0, ()), (0, ()))
    while ready:
        name = ready.pop()
        cell, arcs = combinational[name]
        for out, bits in cell["connections"].items():
            if cell["port_directions"][out] != "output":
                continue
            levels, time = (0, ()), (0, ())
            for (source, target), ps in arcs.items():
                if target != out or source not in cell["connections"]:
                    continue
                before = arrival.get(cell["connections"][source][0], zero)
                levels = max(levels, (before[0][0] + (source != "CI"), (*before[0][1], name) if source != "CI" else before[0][1]), key=lambda at: at[0])
                time = max(time, (before[1][0] + ps, (*before[1][1], name)), key=lambda at: at[0])
            arrival[bits[0]] = (levels, time)
            for reader in readers.get(bits[0], ()):
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.append(reader)
    return max((at[0] for at in arrival.values()), key=lambda at: at[0]), max((at[1] for at in arrival.values()), key=lambda at: at[0])


def names(module, path):
    """Of the nets along a path, without what yosys adds to them."""
    known = {}
    for name, net in module["netnames"].items():
        for bit in net["bits"] if not net["hide_name"] else ():
            short = name.partition("_MISTRAL")[0]
            known[bit] = min(known.get(bit, short), short, key=len)
    outputs = ((cell, port) for cell in (module["cells"][name] for name in path) for port in cell["connections"])
    bits = [cell["connections"][port][0] for cell, port in outputs if cell["port_directions"][port] == "output"]
    return list(dict.fromkeys(known[bit] for bit in bits if bit in known))


def area(module):
    """ALMs at least, memory blocks of 10 Kbit, and multipliers."""
    cells = collections.Counter(cell["type"] for cell in module["cells"].values())
    luts = sum(count for kind, count in cells.items() if kind.startswith("MISTRAL_ALUT"))
    logic = (luts + cells["MISTRAL_ALUT6"] + 1) // 2 + cells["MISTRAL_MLAB"] // MEMORY_CELLS
    multipliers = sum(count for kind, count in cells.items() if kind.startswith("MISTRAL_MUL"))
    return {"luts": luts, "alms": max(logic, cells["MISTRAL_FF"] // 4), "blocks": cells["MISTRAL_M10K"], "multipliers": multipliers}


def main():
    for top in sys.argv[1:]:
        module = netlist(top)
        levels, time = paths(module)
        told = {"module": top, "levels": levels[0], "ns": round(time[0] / 1000, 1), **area(module), "path": names(module, levels[1])}
        print("depth " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
