"""Levels of logic and delay of the monitor's modules, with the interpreter that has yosys: depth.py MODULE...

Each is synthesized by itself for Cyclone V (`synth_intel_alm`), without placement and routing: a measure to compare changes by, no
frequency. A level is a LUT or the beginning of a carry chain; delays are those of yosys' models of the cells, without wires. Prints
one line of JSON for each module, with the path that has most levels.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import pyosys
from pyosys import libyosys as yosys

RTL = Path(__file__).resolve().parent / "rtl"
# Of the accelerators, not of the monitor.
OTHERS = {"stream_shell", "job_shell", "plain_register", "image_window"}
FLIP_FLOP, FLIP_FLOP_DELAY = "MISTRAL_FF", 731


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
    files = [RTL / "line_pkg.sv", *(path for path in sorted(RTL.glob("*.sv")) if path.stem not in OTHERS | {"line_pkg"})]
    design = yosys.Design()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "netlist.json"
        for command in (f"read_slang --unroll-limit 10000 --top {top} -I {RTL} {' '.join(map(str, files))}",
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


def main():
    for top in sys.argv[1:]:
        module = netlist(top)
        levels, time = paths(module)
        luts = sum(cell["type"].startswith("MISTRAL_ALUT") for cell in module["cells"].values())
        print("depth " + json.dumps({"module": top, "levels": levels[0], "ns": round(time[0] / 1000, 1), "luts": luts, "path": levels[1]}), flush=True)


if __name__ == "__main__":
    main()
