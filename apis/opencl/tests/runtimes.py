"""Where programs run: on a runtime of this machine, natively or through Aviary."""

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("AVIARY_TEST_CACHE", ROOT / "target" / "cache"))
AVIARY = Path(os.environ.get("AVIARY", ROOT / "target" / "release" / "aviary"))

RUNTIMES = ("pocl", "intel", "nvidia")
# Where NVIDIA's driver lies: a machine that only lends its device to containers has no .icd file for it.
NVIDIA = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def put(file, text):
    """The file has this text, at every moment from its first on: programs of other tests read it meanwhile."""
    if file.is_file() and file.read_text() == text:
        return
    whole = file.with_name(f"{file.name}.{os.getpid()}")
    whole.write_text(text)
    whole.rename(file)


def vendor_folder(runtime):
    """A folder for OCL_ICD_VENDORS that holds one runtime; None where it is not installed."""
    if runtime == "pocl":
        known = Path("/etc/OpenCL/vendors/pocl.icd")
        library = known.read_text().strip() if known.is_file() else None
    elif runtime == "nvidia":
        found = [Path(folder) / "libnvidia-opencl.so.1" for folder in NVIDIA]
        library = next((str(path) for path in found if path.is_file()), None)
    else:
        # The wheel's own .icd file holds a placeholder instead of the path.
        found = CACHE / "intel" / "lib" / "libintelocl.so"
        library = str(found) if found.is_file() else None
    if library is None:
        return None
    folder = CACHE / f"icd-{runtime}"
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / f"{runtime}.icd", library + "\n")
    return folder


# The status of a program that was stopped at its limit: that of no signal.
HUNG = -999


@dataclass
class Outcome:
    """What a run of a program left behind."""

    status: int
    output: str
    errors: str
    seconds: float
    extra: dict = field(default_factory=dict)


@dataclass
class Place:
    """One way to run a program: a runtime, natively or remoted."""

    runtime: str
    remote: bool
    work: Path
    options: tuple = ()
    # Which of several that run at once. PoCL fails to link a program if another process does with the same one, in the same cache,
    # at the same moment (it looks whether a file is there and then insists on removing it), without Aviary too.
    copy: int = 0

    def environment(self):
        environment = dict(os.environ)
        environment["OCL_ICD_VENDORS"] = str(vendor_folder(self.runtime))
        # Kernels compiled once are used by both sides of a comparison.
        kernels = f"pocl-kernels-{self.copy}" if self.copy else "pocl-kernels"
        for name, folder in (("POCL_CACHE_DIR", kernels), ("XDG_CACHE_HOME", "user")):
            path = CACHE / folder
            path.mkdir(parents=True, exist_ok=True)
            environment[name] = str(path)
        # Intel's runtime compiles for every program anew unless told where to keep results.
        environment["PYOPENCL_NO_CACHE"] = "1"
        return environment

    def command(self, arguments):
        arguments = [str(a) for a in arguments]
        if not self.remote:
            return arguments
        return [str(AVIARY), "run", "--api", "opencl", *self.options, "--", *arguments]

    def start(self, arguments, cwd=None, **environment):
        self.work.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            self.command(arguments),
            cwd=cwd or self.work,
            env={**self.environment(), **{k: str(v) for k, v in environment.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, arguments, limit=300, cwd=None, **environment):
        started = time.monotonic()
        process = self.start(arguments, cwd=cwd, **environment)
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # Only this program's own session: the command and what it started.
            os.killpg(process.pid, 9)
            output, errors = process.communicate()
            return Outcome(HUNG, output, errors + f"\n(stopped after {limit} s)", time.monotonic() - started)
        return Outcome(process.returncode, output, errors, time.monotonic() - started)


def compile_c(source, folder):
    """Builds a test program; the same binary serves both sides."""
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / source.stem
    include = Path(__file__).resolve().parent
    newest = max(file.stat().st_mtime for file in (source, *include.glob("*.h")))
    if not binary.exists() or binary.stat().st_mtime < newest:
        # Under its name only when it is whole: tests of several folders use it, at the same time.
        new = folder / f"{source.stem}.{os.getpid()}"
        subprocess.run(["gcc", "-O1", "-g", "-Wall", "-Wextra", f"-I{include}", "-o", new, source, "-lOpenCL", "-lpthread"], check=True)
        new.replace(binary)
    return binary
