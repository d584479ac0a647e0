#!/usr/bin/env python3
"""Makes a job of an accelerator and its golden result, for the tests and measurements in crates/fpga.

  fpga/tests/golden.py FILE SEED LINES SOURCE     prints JSON: registers, input and output (hexadecimal), results
  fpga/tests/golden.py --endless FILE LINES SOURCE     a job of at least LINES lines: registers, input, progress

FILE is the golden.py of an accelerator's folder. It has `case(random, lines)`: `random` is a numpy generator, `lines` about how many lines the input
may have. It returns the input, the output that the accelerator must write, and the values of its own registers by name. A file whose accelerator
has other registers for its job than SOURCE, TARGET and LINES says so with STREAMS: register and shift of each, and of SCRATCH, memory for itself.
One whose input has addresses has `case(random, lines, source)` with the address of the input, and may return the expected values of status registers.

`endless(lines, source)` returns the input, the registers, and the names of the status registers whose sum says how far the job is. Without it the
job has no registers of its own, and TAKEN counts its lines.
"""

import importlib.util
import inspect
import json
import sys
from pathlib import Path

import numpy

LINE = 64
# The registers to which a job's addresses and its number of lines go, and by how many bits they are shifted to the right.
STREAMS = {"SOURCE": ["SOURCE", 0], "TARGET": ["TARGET", 0], "LINES": ["LINES", 0]}


def model(path):
    spec = importlib.util.spec_from_file_location("golden_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def job(module, given, registers):
    values = {register: int(value) for register, value in registers.items()}
    return {"registers": values, "streams": getattr(module, "STREAMS", STREAMS), "input": given.hex()}


def case(path, seed, lines, source):
    module = model(path)
    arguments = (numpy.random.default_rng(seed), lines, source)
    given, expected, registers, *results = module.case(*arguments[:len(inspect.signature(module.case).parameters)])
    if len(given) % LINE or len(expected) % LINE:
        raise ValueError(f"{path}: input of {len(given)} and output of {len(expected)} bytes; expected multiples of {LINE}")
    return job(module, given, registers) | {"output": expected.hex(), "results": results[0] if results else {}}


def endless(path, lines, source):
    module = model(path)
    given, registers, progress = getattr(module, "endless", lambda *_: (b"", {}, ["TAKEN"]))(lines, source)
    return job(module, given, registers) | {"progress": progress}


def main(words):
    if words[0] == "--endless":
        return endless(Path(words[1]), *map(int, words[2:4]))
    return case(Path(words[0]), *map(int, words[1:4]))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    json.dump(main(sys.argv[1:]), sys.stdout)
