"""SYCL on Intel's OpenCL runtime: unified shared memory, and the test suites inside the wheels of dpctl and dpnp."""

import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from programs import difference  # noqa: E402
from runtimes import CACHE, ROOT, Place, compile_c, vendor_folder  # noqa: E402

sys.path.insert(0, str(ROOT / "tests"))
from harness.process import run_nodes  # noqa: E402

HERE = Path(__file__).resolve().parent
PYTHON = CACHE / "sycl" / "bin" / "python"
# The suite, the file in its wheel, and which of its tests.
SUITES = (
    ("dpctl", "test_sycl_usm.py", None),
    ("dpctl", "test_sycl_queue_memcpy.py", None),
    ("dpctl", "test_sycl_kernel_submit.py", None),
    ("dpnp", "test_fill.py", None),
    ("dpnp", "test_linalg.py", "TestSolve or TestCholesky"),
)
# Computes until its API server is gone, and then must not seem to have come to an end.
ENDLESS = """
import dpnp
a = dpnp.arange(1000, dtype="f4")
print("ready", flush=True)
for _ in range(100000):
    b = dpnp.sin(a) + a
    assert abs(float(b.sum()) - 499499.9) < 1
print("done")
"""


def places(work):
    return Place("intel", False, work / "sycl-native"), Place("intel", True, work / "sycl-remote")


def on_both(work, run):
    """The results of the native run and of the other one, which run at the same time."""
    with ThreadPoolExecutor(2) as pool:
        return tuple(pool.map(run, places(work)))


def memory(work, report):
    """Programs of our own: without one address on both sides, and under a limit; with one they are among the other programs."""
    program = compile_c(HERE / "programs" / "usm.c", CACHE / "opencl-programs")
    native = places(work)[0].run([program, "device"], limit=120)
    remote = Place("intel", True, work / "sycl-mirror", ("--mirror",)).run([program, "device"], limit=120)
    equal = native.status == 0 and (remote.status, remote.output) == (native.status, native.output)
    report.check(equal, "sycl: memory of devices as numbers (--mirror)",
                 difference((native.status, native.output), (remote.status, remote.output)) + remote.errors)
    quota = compile_c(HERE / "usm_quota.c", CACHE / "opencl-programs")
    done = Place("intel", True, work / "sycl-quota", ("--limit", "device_memory=1048576")).run([quota, "1048576"], limit=120)
    report.check(done.status == 0 and done.output == "exact\n", "sycl: the limit of device memory is exact", done.output + done.errors)


def outcomes(text):
    """What pytest said of each test."""
    return sorted(set(re.findall(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S+::[^\n]*?)(?: - .*)?$", text, flags=re.M))
                  | set(re.findall(r"^(SKIPPED) (\[\d+\] [^:\n]*:\d+)", text, flags=re.M)))


def suites(work, report):
    for package, file, only in SUITES:
        folder = next(PYTHON.parents[1].glob(f"lib/python*/site-packages/{package}/tests"), None)
        if folder is None:
            report.check(False, f"sycl: {package} {file}", "its wheel has no tests")
            continue
        command = [PYTHON, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", file, *(("-k", only) if only else ())]
        native, remote = on_both(work, lambda place: place.run(command, limit=300, cwd=folder))
        tests = outcomes(native.output)
        count = sum(1 for outcome, _ in tests if outcome == "PASSED")
        missing = re.findall(r"aviary: \w+ is not supported.*", remote.output + remote.errors)
        same = count > 0 and tests == outcomes(remote.output) and native.status == remote.status
        lines = [[" ".join(t) for t in outcomes(o.output)] for o in (native, remote)]
        report.check(same and not missing, f"sycl: {package} {file}: {count} passed as natively",
                     difference((native.status, lines[0]), (remote.status, lines[1])) + "".join(missing) + remote.errors[-400:])


def server_of(node):
    """The API server that has Intel's runtime; None: there is none yet."""
    for entry in Path("/proc").iterdir():
        try:
            maps = (entry / "maps").read_text() if entry.name.isdigit() else ""
            parents, pid = [], int(entry.name) if maps else 0
            while pid > 1 and len(parents) < 10:
                parents.append(pid)
                pid = int(re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), flags=re.M).group(1))
        except (OSError, AttributeError, ValueError):
            continue
        if "libintelocl" in maps and node in parents:
            return int(entry.name)
    return None


def ends(work, report):
    """A program whose API server dies is told, and does not go on with wrong numbers."""
    process = places(work)[1].start([PYTHON, "-c", ENDLESS])
    try:
        ready = process.stdout.readline()
        server = next(filter(None, (server_of(node) for node in run_nodes(process.pid))), None)
        if ready == "ready\n" and server:
            os.kill(server, signal.SIGKILL)
        output, errors = process.communicate(timeout=600)
        told = ready == "ready\n" and server and process.returncode not in (0, -signal.SIGSEGV) and "done" not in output
        report.check(told, "sycl: a program is told of its API server's end",
                     f"{ready!r}, server {server}, status {process.returncode}: {output}{errors[-600:]}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def check(work, report):
    if vendor_folder("intel") is None or not PYTHON.exists():
        return report.skip("sycl", "dpctl, dpnp or Intel's runtime are not installed (./x setup)")
    started = time.monotonic()
    memory(work, report)
    suites(work, report)
    ends(work, report)
    print(f"sycl: {time.monotonic() - started:.0f} s")
