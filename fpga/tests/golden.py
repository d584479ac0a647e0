#!/usr/bin/env python3
"""Makes a job of a streaming accelerator and its golden result, for the tests in crates/fpga.

  fpga/tests/golden.py FILE SEED LINES    prints JSON: registers, input and output (hexadecimal)

FILE is the golden.py of an accelerator's folder. It has `case(random, lines)`: `random` is a numpy generator, `lines` about how many lines the input
may have. It returns the input, the output that the accelerator must write, and the values of its own registers by name. A file whose accelerator
has other registers for its job than SOURCE, TARGET and LINES says so with STREAMS: register and shift of each, and of SCRATCH, memory for itself.
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy

LINE = 64
# The registers to which a job's addresses and its number of lines go, and by how many bits they are shifted to the right.
STREAMS = {"SOURCE": ["SOURCE", 0], "TARGET": ["TARGET", 0], "LINES": ["LINES", 0]}


def case(path, seed, lines):
    spec = importlib.util.spec_from_file_location("golden_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given, expected, registers = module.case(numpy.random.default_rng(seed), lines)
    if len(given) % LINE or len(expected) % LINE:
        raise ValueError(f"{path}: input of {len(given)} and output of {len(expected)} bytes; expected multiples of {LINE}")
    return {
        "registers": {register: int(value) for register, value in registers.items()},
        "streams": getattr(module, "STREAMS", STREAMS),
        "input": given.hex(), "output": expected.hex(),
    }


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    json.dump(case(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
