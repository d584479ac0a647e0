"""Where the tools are that `./x setup` installs for the FPGA: one Python environment with Verilator, yosys and cocotb."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "target/cache/fpga"


def python():
    """The interpreter of the environment; None if it was not installed."""
    path = ENVIRONMENT / "bin/python3"
    return path if (ROOT / "target/cache/fpga.done").exists() and path.exists() else None


def verilator():
    """The folder of the Verilator package; None if it was not installed. Its `bin/verilator` needs more of perl than every machine
    has, and only starts `bin/verilator_bin`."""
    found = sorted(ENVIRONMENT.glob("lib/python3*/site-packages/verilator"))
    return found[0] if python() and found else None


def cocotb():
    """The folder of cocotb; None if it was not installed."""
    found = sorted(ENVIRONMENT.glob("lib/python3*/site-packages/cocotb"))
    return found[0] if python() and found else None


def compiles(source):
    """Does the C++ compiler take this?"""
    done = subprocess.run(["g++", "-fsyntax-only", "-x", "c++", "-"], input=source, capture_output=True, text=True, check=False)
    return done.returncode == 0


def verilator_environment():
    return {**os.environ, "VERILATOR_ROOT": str(verilator())}


# The package's own makefile was made for another machine: without the first variable gcc does not find the header that it has
# precompiled, and there is no `python` on Debian.
MAKE_VARIABLES = ("CFG_CXXFLAGS_PCH_I=-include", "PYTHON3=python3")
