"""The simulated FPGA card of tests: images, libraries and programs for them."""

import subprocess

from harness.process import ROOT, Skipped, Wrong, run

FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]


def image(name):
    """The file of an image, built if its sources changed."""
    built = subprocess.run([ROOT / "fpga/build", name], capture_output=True, text=True, check=False)
    if "is not installed" in built.stderr:
        raise Skipped("the FPGA tools are not installed; ./x setup installs them")
    if built.returncode:
        raise Wrong(built.stderr)
    return built.stdout.strip()


def libraries():
    """The folder of libaviary-fpga and libopae-c."""
    return run([ROOT / "fpga/opae/build"]).strip()


def program(source, to):
    """Compiles a C program against one of these libraries: that of OPAE if it includes its header."""
    folder = libraries()
    text = source.read_text(encoding="utf-8")
    opae = "<opae/" in text or 'common.h"' in text
    # As distributions link: a function that the library lacks is missed at the start.
    run(["cc", *FLAGS, "-Wl,-z,now", "-pthread", "-I", ROOT / "fpga/library", "-I", ROOT / "fpga/opae/include", source, "-L", folder,
         "-lopae-c" if opae else "-laviary-fpga", f"-Wl,-rpath-link,{folder}", "-o", to])
    return to
