"""The programs of CUDA's tests on the reference driver, moved after every n-th call: they print what they print natively."""

import re
import subprocess
import tempfile
from pathlib import Path

from attempts import Attempts, output
from harness.node import running
from harness.process import AVIARY, HANG, ROOT, Skipped, Wrong, run, wait_until
from operator_cases import sessions, tenant_used
from parking_cases import nothing_is_left
from programs import PASSING
from swap_cases import host_swap, swap, swap_out

TESTS = ROOT / "apis/cuda/tests"
EVERY = (1, 7, 100)
# Of the programs of the sample.
SAMPLE = {"vectors": 1, "transfers": 100, "mapped": 7, "registered": 7, "variables": 7, "hostfunctions": 7, "reload": 100, "pools": 100}
# Those of it that are parked, too: one fills device memory, whose content is copied, and one knows addresses of variables, so that
# its parks are rehearsed.
PARKED = {"transfers": 100, "linker": 7, "pools": 100}
# And those that are swapped.
SWAPPED = {"vectors": 1, "graphs": 7, "pools": 100}
# Reasons that pass by themselves, or with the object that they name.
PASSING_HERE = (
    *PASSING,
    "devices still execute earlier calls",
    "other processes of the application use memory that it exported",
    "graphs are not made again",
    "what a linker was given is not kept",
    "the content of arrays is not saved",
    "physical memory that it maps itself is not handed over",
    "function of the application is still to be called for it",
)
CAPTURED = "memory that a captured stream has allocated lies where the driver chooses"
PRIMARY = "its primary context has ended"
# Programs that make calls because of which a session stays, and the reasons.
LASTING = {
    "batches": ("the driver chooses the number of a texture"),
    "bounds": ("physical memory that it has mapped itself",),
    "contexts": (PRIMARY,),
    "early": ("its primary context was reset", PRIMARY),
    "errors": (PRIMARY,),
    "evicted": ("physical memory that it has mapped itself",),
    "graph_memory": ("memory of graphs lies where the driver chooses", CAPTURED),
    "graphs": (CAPTURED,),
    "green": ("parts of a device are known to one process only",),
    "handles": (PRIMARY,),
    # Modules and functions whose contexts have ended keep their handles, of which a later one may get one.
    "reload": (PRIMARY, "repeated in the new API server: the library gave object"),
    "runtime": ("the driver chooses the number of a texture", PRIMARY),
    "printing": ("a context has an error that stays",),
    "sharing": ("other processes of the application", "of another process of the application", "has mapped itself"),
    "shared_events": ("other processes of the application", "of another process of the application"),
    "visible": (PRIMARY,),
    "variables": (PRIMARY,),
}
ENVIRONMENT = {
    "peers": {"REFCUDA_DEVICES": "2"},
    "scarce": {"REFCUDA_MEMORY": "104857600"},
    "visible": {"REFCUDA_DEVICES": "4"},
}
# Of a session of `transfers`, which fills 64 MiB of device memory.
MOST_STATE_BYTES = 1 << 20
# Of `evicted`: steps between which its memory leaves, steps while it is asked to, and what leaves at least.
STEPS, BUSY_STEPS, EVICTED_BYTES = 3, 3, 9 << 20
# What one thread needs for its copies, which stays with the host's memory.
COPY_BUFFERS = 8 << 20
# Of a tenant with room for what one `evicted` takes, not for two.
HOST_SWAP = 24 << 20
# What two programs share that each use all that they are told of.
SHARED_MIB = 64
# Of a device whose pieces have one granule: what programs allocate in more than one. They copy, fill, launch, and open one another's.
PIECES_MIB = 256
IN_PIECES = ("transfers", "vectors", "graphs", "pools", "mapped", "sharing", "threads")
# What a device has of which the node believes that it has so much: room for one `evicted`, not for two.
SHORT_MIB = 14
# Parts of the output that a move changes rightly, because it waits for the device first.
DIFFERS = {
    # Work of 150 ms is still under way, natively.
    "order": r"^cuStreamQuery\(CU_STREAM_LEGACY\): [^\n]*$",
    # The output of a kernel for which a process does not wait is lost, natively.
    "printing": r"^== left when the process ends$.*?^-- ended$",
}
# And a swap, which takes so little time that it comes between the calls of work and of a question about it.
SWAP_DIFFERS = {"order": r"^cu(?:StreamQuery|EventQuery|EventElapsedTime)\([^\n]*$"}


def built(tools):
    """The reference driver and the programs, built once."""
    folder = tools.library / "cuda"
    if not (ROOT / "target/aviary/cuda/libcuda.so.1").exists():
        raise Skipped("the API is not built")
    if not (folder / "built").exists():
        run([TESTS / "build", folder])
        (folder / "built").touch()
    return folder


def compared(name, text, kind):
    differs = DIFFERS | SWAP_DIFFERS if kind == "swap" else DIFFERS
    return re.sub(differs[name], "", text, flags=re.MULTILINE | re.DOTALL) if name in differs else text


def brute_force(tools, name, every, kind="move"):
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1", **ENVIRONMENT.get(name, {})}
    native = output([folder / name], environment)
    command = [AVIARY, "run", "--api", "cuda", "--log-level", "debug", "--", folder / name]
    chosen = {"AVIARY_TEST_MOVE_EVERY": str(every), "AVIARY_TEST_MOVE_KIND": kind}
    status, text, errors = output(command, {**environment, **chosen})
    attempts = Attempts(tools, f"cuda/{name}", every, kind, errors)
    attempts.same((native[0], compared(name, native[1], kind)), (status, compared(name, text, kind)))
    attempts.expected((*PASSING_HERE, *LASTING.get(name, ())))
    if name in {"park": PARKED, "swap": SWAPPED}.get(kind, ()) and not attempts.count:
        raise Wrong(f"there was no {kind}")


def device_memory_is_handed_over(tools):
    """The memory of a device goes to the new API server by descriptors: no state has its content."""
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1", "AVIARY_TEST_MOVE_EVERY": "50"}
    command = [AVIARY, "run", "--api", "cuda", "--log-level", "debug", "--", folder / "transfers"]
    _, _, errors = output(command, environment)
    states = [int(bytes_) for bytes_ in re.findall(r"moved from API server .* (\d+) bytes", errors)]
    if not states or max(states) > MOST_STATE_BYTES:
        raise Wrong(f"states of at most {MOST_STATE_BYTES} bytes were expected, not {states}")


def memory_leaves_and_returns(tools):
    """Every kind of device memory that can leave does so between the steps of a program, and is asked to while that works."""
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1"}
    lines = "\n" * (STEPS + BUSY_STEPS)
    native = subprocess.run(
        [folder / "evicted"], input=lines, capture_output=True, text=True, check=True, timeout=HANG, env=environment
    )
    with running(environment) as node:
        command = [AVIARY, "run", "--api", "cuda", "--server", node.address, "--", folder / "evicted"]
        program = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        found = [program.stdout.readline()]
        session, used = sessions(node, "cuda")[0]["session"], tenant_used(node)
        for _ in range(STEPS):
            figures = swap_out(node, session)
            # What the session has is charged as before, and the host's memory besides.
            if figures["bytes"] < EVICTED_BYTES + COPY_BUFFERS or tenant_used(node) != used or host_swap(node)[0] < figures["bytes"]:
                raise Wrong(f"{figures}, used {tenant_used(node)} instead of {used}, swap {host_swap(node)}")
            program.stdin.write("\n")
            program.stdin.flush()
            found.append(program.stdout.readline())
            wait_until(HANG, "it is back", lambda: host_swap(node) == (figures["bytes"],) * 2)  # noqa: B023
        program.stdin.write("\n" * BUSY_STEPS)
        program.stdin.close()
        outs = 0
        while sessions(node, "cuda"):
            outs += swap(node, "out", session, "--wait", 0)[0] == 0
        found += program.stdout.readlines()
        print(f"     evicted: out {STEPS} times between its steps, {outs} times while it worked", flush=True)
        if program.wait(timeout=HANG) or "".join(found) != native.stdout:
            raise Wrong(f"status {program.returncode}, {found} instead of {native.stdout.splitlines()}: {node.log.read_text()[-1500:]}")
        nothing_is_left(node, "after evictions")


def memory_for_copies_is_given_to_who_needs_it(tools):
    """A program that is in keeps host memory, with that for copies: another one that leaves gets all of it."""
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1"}
    native = subprocess.run(
        [folder / "evicted"], input="\n", capture_output=True, text=True, check=True, timeout=HANG, env=environment
    ).stdout
    with running(environment, "--limit", f"host_swap={HOST_SWAP}") as node:
        command = [AVIARY, "run", "--api", "cuda", "--server", node.address, "--", folder / "evicted"]
        programs = []
        for _ in range(2):
            programs.append(subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            found = programs[-1].stdout.readline()
            if not native.startswith(found):
                raise Wrong(f"{found!r} instead of {native!r}")
        first, second = sorted(session["session"] for session in sessions(node, "cuda"))
        bytes_ = swap_out(node, first)["bytes"]
        if swap(node, "in", first)[0] or host_swap(node) != (bytes_, bytes_):
            raise Wrong(f"{host_swap(node)} is kept instead of {bytes_}")
        if swap_out(node, second)["bytes"] != bytes_ or host_swap(node) != (bytes_, bytes_):
            raise Wrong(f"{host_swap(node)} instead of {bytes_}")
        for program in programs:
            program.stdin.write("\n")
            rest = program.communicate(timeout=HANG)[0]
            if program.returncode or not native.endswith(rest) or not rest:
                raise Wrong(f"status {program.returncode}: {rest!r} instead of {native!r}")
        nothing_is_left(node, "after memory was given back")


def shared_device_looks_like_one_of_its_own(tools):
    """Programs that ask how much memory there is see all that the node shares out, whatever another program has there."""
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1"}
    # Natively, with a device that is as small.
    expected = output([folder / "scarce"], {**environment, "REFCUDA_MEMORY": str(SHARED_MIB << 20)})
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f'[devices."*"]\nmemory = "{SHARED_MIB}M"\noversubscribe = 2.0\n')
        config.flush()
        with running(environment, "--config", config.name) as node:
            command = [AVIARY, "run", "--server", node.address, "--", folder / "scarce"]
            programs = [subprocess.Popen(command, text=True, stdout=subprocess.PIPE) for _ in range(2)]
            found = [(program.communicate(timeout=HANG)[0], program.returncode) for program in programs]
            if expected[0] or "ok scarce" not in expected[1] or found != [(expected[1], 0)] * 2:
                raise Wrong(f"{found} instead of {expected}: {node.log.read_text()[-1500:]}")


def others_leave_where_the_driver_has_no_memory(tools):
    """The node believes that a device has room for two programs, and it has not: each goes on once the other one has left."""
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1"}
    native = subprocess.run(
        [folder / "evicted"], input="\n" * STEPS, capture_output=True, text=True, check=True, timeout=HANG, env=environment
    )
    with tempfile.TemporaryDirectory(prefix="aviary-short-") as directory:
        Path(directory).chmod(0o755)
        file, config = Path(directory) / "memory", Path(directory) / "node.toml"
        file.touch()
        file.chmod(0o666)
        config.write_text(
            f'[devices."*"]\nmemory = "{SHARED_MIB}M"\noversubscribe = 2.0\n[sandbox]\ndevices = ["{file}"]\n', encoding="utf-8"
        )
        environment["REFCUDA_MEMORY"] = f"{file}:{SHORT_MIB << 20}"
        with running(environment, "--config", config, "--log-level", "debug") as node:
            command = [AVIARY, "run", "--api", "cuda", "--server", node.address, "--", folder / "evicted"]
            programs = [in_steps(command) for _ in range(2)]
            for _ in range(STEPS):
                for program, found in programs:
                    program.stdin.write("\n")
                    program.stdin.flush()
                    found.append(program.stdout.readline())
            for program, found in programs:
                found.append(program.communicate(timeout=HANG)[0])
                if program.returncode or "".join(found) != native.stdout:
                    log = node.log.read_text()[-2500:]
                    raise Wrong(f"status {program.returncode}, {found} instead of {native.stdout.splitlines()}: {log}")
            log = node.log.read_text()
            if "were granted that its device does not have" not in log or log.count("swapped out") < 2 * STEPS:
                raise Wrong(log[-2500:])
            nothing_is_left(node, "after a short device")


def a_part_leaves_where_that_is_enough(tools):
    """Two programs take turns on a device that has room for one and a half: what of one leaves is what the other lacks."""
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1"}
    native = subprocess.run(
        [folder / "evicted"], input="\n" * STEPS, capture_output=True, text=True, check=True, timeout=HANG, env=environment
    )
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f'[devices."*"]\nmemory = "{SHORT_MIB}M"\noversubscribe = 2.0\n')
        config.flush()
        with running(environment, "--config", config.name, "--log-level", "debug") as node:
            programs = [in_steps([AVIARY, "run", "--api", "cuda", "--server", node.address, "--", folder / "evicted"]) for _ in range(2)]
            for step in range(STEPS):
                for program, found in programs:
                    program.stdin.write("\n")
                    program.stdin.flush()
                    found.append(program.stdout.readline())
                if step == 0:
                    the_rest_leaves(node)
            for program, found in programs:
                found.append(program.communicate(timeout=HANG)[0])
                if program.returncode or "".join(found) != native.stdout:
                    raise Wrong(f"status {program.returncode}, {found}: {node.log.read_text()[-2500:]}")
            parts = [int(part) for part in re.findall(r"swapped out: .* (\d+) bytes have left", node.log.read_text())]
            # The first program leaves as a whole, for the other one's allocations.
            if len(parts) < 2 * STEPS or not all(part < parts[0] for part in parts[1:]):
                raise Wrong(f"{parts} bytes have left: {node.log.read_text()[-2500:]}")
            nothing_is_left(node, "after parts")


def memory_in_pieces_is_as_in_one(tools):
    """Where a device is shared out an allocation has its memory in pieces: programs notice nothing, nor do processes that open it."""
    folder = built(tools)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f'[devices."*"]\nmemory = "{PIECES_MIB}M"\n')
        config.flush()
        for name in IN_PIECES:
            environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "EXPECT_SCRUBBED": "1", **ENVIRONMENT.get(name, {})}
            native = output([folder / name], environment)
            with running(environment, "--config", config.name) as node:
                found = output([AVIARY, "run", "--api", "cuda", "--server", node.address, "--", folder / name], {})
                if native[0] or found[:2] != native[:2]:
                    raise Wrong(f"{name}: {found} instead of {native}: {node.log.read_text()[-1500:]}")
                nothing_is_left(node, f"after {name}")


def the_rest_leaves(node):
    """Of a session that is out in part, as an operator wants it."""
    there = lambda session: session["counters"].get("resident_memory@Aviary Reference Device.used", 0)  # noqa: E731
    out = [session for session in sessions(node, "cuda") if session.get("swapped", {}).get("place") == "out"]
    if len(out) != 1 or not 0 < there(out[0]) < out[0]["counters"]["device_memory.used"]:
        raise Wrong(f"not out in part: {out}")
    swap_out(node, out[0]["session"])
    if any(there(session) for session in sessions(node, "cuda") if session["session"] == out[0]["session"]):
        raise Wrong(f"some of it is there: {sessions(node, 'cuda')}")


def in_steps(command):
    """A program that makes its first step, and what it says."""
    program = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return program, [program.stdout.readline()]


def names():
    return sorted({source.stem for source in (TESTS / "driver").glob("*.c")} | {"runtime"})


def listed_programs_are_there(_):
    """The lists of this file name programs of CUDA's tests, all of which run with moves."""
    unknown = (set(LASTING) | set(ENVIRONMENT) | set(DIFFERS) | set(SAMPLE)) - set(names())
    if unknown:
        raise Wrong(f"no programs: {sorted(unknown)}")


def cases(long):
    chosen = [(name, every) for name in names() for every in EVERY] if long else SAMPLE.items()
    programs = {
        f"cuda-{name}-{every}": lambda tools, p=name, n=every: brute_force(tools, p, n) for name, every in chosen
    }
    parked = [(name, every) for name in names() for every in EVERY] if long else PARKED.items()
    programs |= {
        f"cuda-parked-{name}-{every}": lambda tools, p=name, n=every: brute_force(tools, p, n, "park") for name, every in parked
    }
    swapped = [(name, 1) for name in names()] if long else SWAPPED.items()
    programs |= {
        f"cuda-swapped-{name}-{every}": lambda tools, p=name, n=every: brute_force(tools, p, n, "swap") for name, every in swapped
    }
    return {"cuda-listed": listed_programs_are_there, "cuda-handed": device_memory_is_handed_over,
            "cuda-evicted": memory_leaves_and_returns, "cuda-kept": memory_for_copies_is_given_to_who_needs_it, "cuda-pieces": memory_in_pieces_is_as_in_one, "cuda-part": a_part_leaves_where_that_is_enough, "cuda-short": others_leave_where_the_driver_has_no_memory, "cuda-shown": shared_device_looks_like_one_of_its_own, **programs}
