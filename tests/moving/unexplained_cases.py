"""Functions whose specification does not say what a move does to them: a session that has called one stays where it is."""

import os
import subprocess
from pathlib import Path

from harness.node import running
from harness.process import AVIARY, HANG, ROOT, Skipped, Wrong, run
from operator_cases import migrate, sessions

HERE = Path(__file__).resolve().parent / "unexplained"
BUILDS = ROOT / "target/aviary-tests"


def unexplained_function_keeps_its_session(tools):
    """Before the first such call the session moves; after it, it is refused by the function's name and has lost nothing."""
    folder = tools.library / "unexplained"
    (folder / "vendor").mkdir(parents=True, exist_ok=True)
    library = folder / "vendor" / "libcounter.so.1"
    run(["gcc", "-shared", "-fPIC", "-O1", f"-I{HERE}", "-Wl,-soname,libcounter.so.1", "-o", library, HERE / "counter.c"])
    run(["gcc", "-O1", f"-I{HERE}", "-o", folder / "program", HERE / "program.c", library])
    run([AVIARY, "spec", "build", HERE / "counter.lapis", "--output", BUILDS])
    coverage = subprocess.run(
        [AVIARY, "spec", "coverage", "--state", HERE / "counter.lapis"], capture_output=True, text=True, check=True
    ).stdout
    if "1 unexplained" not in coverage:
        raise Wrong(coverage)
    with running({"AVIARY_VENDOR_COUNTER": str(library)}, "--api-dir", BUILDS) as node:
        command = [AVIARY, "run", "--api-dir", BUILDS, "--api", "counter", "--server", node.address, "--"]
        with subprocess.Popen(
            [*command, folder / "program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
        ) as program:
            program.stdout.readline()
            session = sessions(node, "counter")[0]["session"]
            status, answer = migrate(node, session)
            if status != 0 or "moved" not in answer:
                raise Wrong(f"before the call: {answer}")
            add(program, "1")
            server = sessions(node, "counter")[0]["server"]
            for options in (["--check"], []):
                status, answer = migrate(node, session, *options)
                refused = answer.get("refused", {})
                if status == 0 or "counter_add" not in refused.get("reason", "") or not refused.get("lasting"):
                    raise Wrong(f"{options}: {answer}")
            add(program, "2")
            now = sessions(node, "counter")[0]
            if now["server"] != server or "counter_add" not in now["moves"]["refused"]:
                raise Wrong(str(now))
            program.stdin.close()
            if program.wait(timeout=HANG) != 0:
                raise Wrong(f"the program ended with {program.returncode}")


def add(program, expected):
    program.stdin.write("\n")
    program.stdin.flush()
    found = program.stdout.readline().strip()
    if found != expected:
        raise Wrong(f"the sum is {found!r} instead of {expected}")


def every_function_is_explained(_):
    """The specifications of the APIs that move say of each function what a move does to it."""
    headers = {"cuda": ROOT / "target/cache/cuda-headers", "nvml": ROOT / "target/cache/nvml-headers"}
    for api in ("testapi", "opencl", "cuda", "nvml"):
        folder = headers.get(api, ROOT)
        if not folder.is_dir():
            raise Skipped(f"the headers of {api} are not there")
        command = [AVIARY, "spec", "coverage", "--state", "-I", folder, ROOT / f"apis/{api}/{api}.lapis"]
        coverage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        functions = [line.split()[0] for line in coverage.splitlines()[:-1] if line.endswith("unexplained")]
        if functions or ", 0 unexplained" not in coverage:
            raise Wrong(f"{api}: {', '.join(functions[:10])}")


ALL = {"unexplained": unexplained_function_keeps_its_session, "explained": every_function_is_explained}
