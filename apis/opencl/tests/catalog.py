"""The unmodified programs and the programs of our own, and what makes two of their runs equal."""

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from runtimes import CACHE, RUNTIMES, Outcome, compile_c

HERE = Path(__file__).resolve().parent


@dataclass
class Program:
    name: str
    # "compute": time goes into kernels; "calls": into the API itself; "own": a test, not measured.
    kind: str
    run: Callable
    # The part of an outcome that must be equal on both sides.
    visible: Callable
    runtimes: tuple = RUNTIMES
    quick: bool = True
    # True if a first run compiles kernels that the second finds in the cache.
    warm: bool = False
    # A suite of tests: some of them may fail, as long as the same ones fail on both sides.
    suite: bool = False


def everything(outcome: Outcome):
    return (outcome.status, outcome.output)


# ---- clinfo, clpeak ---------------------------------------------------------------------------


def clinfo(place):
    return place.run(["clinfo"], limit=60)


def clinfo_visible(outcome):
    # The current frequency and the free memory change from second to second. Memory of `malloc` is the application's alone.
    hidden = r"Max clock frequency|Global free memory|Shared System USM caps|Fine-grained system sharing"
    lines = [l for l in outcome.output.splitlines() if not re.search(hidden, l)]
    return (outcome.status, "\n".join(lines))


def clpeak(place):
    return place.run(["clpeak"], limit=600)


def clpeak_tests(*tests):
    return lambda place: place.run(["clpeak", *tests], limit=300)


def numbers_replaced(outcome):
    """The lines with every number as 0: all tests ran and printed one."""
    # A copy that is answered within a microsecond has infinite bandwidth to clpeak.
    return (outcome.status, re.sub(r"-?\d+(\.\d+)?|\binf\b", "0", outcome.output))


# ---- hashcat ----------------------------------------------------------------------------------


def hashcat(mode, secret, mask, digest):
    def run(place):
        session = f"aviary-{place.runtime}-{'remote' if place.remote else 'native'}-{mode}-{place.work.name}"
        return place.run(
            ["hashcat", "--force", "--quiet", "--potfile-disable", "--logfile-disable", "--restore-disable",
             "--session", session, "-m", mode, "-a", 3, digest(secret.encode()).hexdigest(), mask],
            limit=400,
        )

    return run


def hashcat_visible(outcome):
    return (outcome.status, [l for l in outcome.output.splitlines() if re.match(r"[0-9a-f]{32,}:", l)])


# ---- ffmpeg -----------------------------------------------------------------------------------


def clip(frames):
    path = CACHE / f"clip-{frames}.mkv"
    if not path.exists():
        import subprocess

        path.parent.mkdir(parents=True, exist_ok=True)
        source = "testsrc2=size=640x360:rate=25"
        subprocess.run(["ffmpeg", "-hide_banner", "-loglevel", "error", "-y", "-f", "lavfi", "-i", source,
                        "-frames:v", str(frames), "-pix_fmt", "yuv420p", path], check=True)
    return path


def ffmpeg(filter_text, frames=25, pixels="yuv420p"):
    def run(place):
        chain = f"format={pixels},hwupload,{filter_text},hwdownload,format={pixels}"
        return place.run(
            ["ffmpeg", "-hide_banner", "-loglevel", "error", "-nostdin", "-init_hw_device", "opencl=gpu:0.0",
             "-filter_hw_device", "gpu", "-i", clip(frames), "-vf", chain, "-f", "framemd5", "-"],
            limit=300,
        )

    return run


# ---- CLBlast ----------------------------------------------------------------------------------

CLBLAST_QUICK = ("xaxpy", "xdot", "xger")
CLBLAST_ALL = tuple(sorted(p.name.removeprefix("clblast_test_") for p in Path("/usr/bin").glob("clblast_test_*")))


def clblast(routine):
    return lambda place: place.run([f"clblast_test_{routine}"], limit=900)


def clblast_visible(outcome):
    """Which sub-tests passed, failed or were skipped; without times."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", outcome.output)
    text = re.sub(r"\d+\.\d+ s(econds)?|[\d.]+ ms", "T", text)
    return (outcome.status, text)


# ---- pyopencl ---------------------------------------------------------------------------------


def pyopencl(*files, deselect=()):
    def run(place):
        python = CACHE / "venv" / "bin" / "python"
        tests = [CACHE / "pyopencl" / "test" / f for f in files]
        skip = [x for d in deselect for x in ("--deselect", f"{tests[0]}::{d}")]
        return place.run(
            [python, "-m", "pytest", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider", *skip, *tests],
            limit=900, cwd=CACHE / "pyopencl" / "test", PYTEST_ADDOPTS="", PYOPENCL_TEST="0:0",
        )

    return run


def pytest_visible(outcome):
    """The set of results per test."""
    lines = [l.split(" - ")[0] for l in outcome.output.splitlines()]
    results = [l for l in lines if re.match(r"(PASSED|FAILED|ERROR|XFAIL|XPASS) ", l)]
    skipped = sum(int(m.group(1)) for m in re.finditer(r"(\d+) skipped", outcome.output))
    return (outcome.status, sorted(results), skipped)


# Intel's runtime ends in a native kernel on a queue without order.
# Of several codes that apply to a call, Intel's runtime returns others in `codes`. It keeps what kernels print in a stream of its own,
# natively, and crashes when a thread is cancelled in it.
# It ends by signal 11 where only events keep a queue, as they do in `releases`.
# `moved` is for sessions that move, and only PoCL's do.
ONLY_ON = {"svm_commands": ("pocl",), "codes": ("pocl",), "printing": ("pocl",), "cancelled": ("pocl",),
           "moved": ("pocl",), "releases": ("pocl",), "usm": ("intel",)}

# ---- the list ---------------------------------------------------------------------------------


def own(name, *arguments, runtimes=RUNTIMES):
    def run(place):
        return place.run([compile_c(HERE / "programs" / f"{name}.c", CACHE / "opencl-programs"), *arguments], limit=120)

    return Program(name, "own", run, everything, runtimes=runtimes)


def catalog():
    names = sorted(source.stem for source in (HERE / "programs").glob("*.c"))
    programs = [own(name, runtimes=ONLY_ON.get(name, RUNTIMES)) for name in names]
    programs += [
        Program("clinfo", "calls", clinfo, clinfo_visible),
        Program("clpeak-latency", "calls", clpeak_tests("--kernel-latency"), numbers_replaced),
        Program("clpeak-transfer", "compute", clpeak_tests("--transfer-bandwidth"), numbers_replaced, quick=False),
        Program("clpeak", "compute", clpeak, numbers_replaced, warm=True, quick=False),
        Program("hashcat-md5", "compute", hashcat(0, "zebra", "?l?l?l?l?l", hashlib.md5), hashcat_visible, warm=True),
        Program("hashcat-sha256", "compute", hashcat(1400, "kiwi", "?l?l?l?l", hashlib.sha256), hashcat_visible,
                warm=True, quick=False),
    ]
    filters = {
        "avgblur": "avgblur_opencl=4",
        "unsharp": "unsharp_opencl",
        "convolution": "convolution_opencl=-2 -1 0 -1 1 1 0 1 2:-2 -1 0 -1 1 1 0 1 2:-2 -1 0 -1 1 1 0 1 2:-2 -1 0 -1 1 1 0 1 2",
        "sobel": "sobel_opencl",
        "transpose": "transpose_opencl=1",
        "boxblur": "boxblur_opencl",
        "erosion": "erosion_opencl",
        "deshake": "deshake_opencl",
    }
    for name, text in filters.items():
        programs.append(Program(f"ffmpeg-{name}", "compute", ffmpeg(text), everything, warm=True,
                                quick=name in ("avgblur", "unsharp", "convolution")))
    programs.append(Program("ffmpeg-nlmeans", "compute", ffmpeg("nlmeans_opencl=3", frames=3), everything, warm=True, quick=False))
    if shutil.which("clblast_test_xaxpy"):
        for routine in CLBLAST_ALL:
            programs.append(Program(f"clblast-{routine}", "calls", clblast(routine), clblast_visible, warm=True, suite=True,
                                    quick=routine in CLBLAST_QUICK))
    for file, quick in (("test_wrapper.py", True), ("test_enqueue_copy.py", True), ("test_arrays_in_structs.py", True),
                        ("test_clmath.py", False), ("test_array.py", False), ("test_algorithm.py", False),
                        ("test_clrandom.py", False)):
        if (CACHE / "pyopencl" / "test" / file).exists():
            programs.append(Program("pyopencl-" + file[5:-3], "calls", pyopencl(file), pytest_visible, warm=True, suite=True,
                                    quick=quick))
    return programs
