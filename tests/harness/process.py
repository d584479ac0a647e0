"""Processes: where Aviary lies, commands that must succeed, and what /proc says of a process."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AVIARY = Path(os.environ.get("AVIARY", ROOT / "target/release/aviary"))
# The APIs that were built with it: where the command looks for them.
APIS = AVIARY.parents[1] / "aviary"
# Seconds after which a wait for an event of another process is a hang. It bounds tests and claims nothing: a machine
# with a load of ten has been seen to delay a process by seconds.
HANG = 240.0


class Failure(Exception):
    """Why a benchmark or a test has no result."""


class Skipped(Failure):
    """What this machine does not have; nothing is wrong."""


class Wrong(Failure):
    """What a check found."""


def run(command, timeout=600, env=None, statuses=(0,)):
    """Output of a command, which must end with one of these statuses; `env` is added to the environment."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})}, check=False
        )
    except subprocess.TimeoutExpired as expired:
        raise Failure(f"{command[0]} was not done after {expired.timeout:.0f} s") from expired
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}") from error
    if done.returncode not in statuses:
        raise Failure(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr.strip()[-2000:]}")
    return done.stdout



def wait_until(seconds, what, condition):
    """Waits for a condition; after `seconds`, usually HANG, it counts as one that never comes true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Wrong(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)


def children(pid):
    """Direct children that have not ended, whatever thread started them."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if alive(child)]


def descendants(pid):
    """Children, their children and so on. An API server in a sandbox is a child of the process 1 of its PID namespace."""
    below = children(pid)
    return below + [other for child in below for other in descendants(child)]


def run_nodes(program):
    """The processes beside a program that `aviary run` has started, by its process id: its node, relay or card."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"run-node" in words[1:2] and b"--detached" in words and str(program).encode() in words[2:8]:
                    found.append(int(entry.name))
    return found


def api_server(number):
    """The process of an API server that knows itself by this id. In a sandbox that is the id which its process 1 has on the host,
    and the API server is the child of that."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/status").read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] == ["NSpid:"] and len(words) > 2 and words[-1] == "1":
                return next(iter(children(number)), number)
    return number


def alive(pid):
    """If the process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in ("Z", "X")


def zombies(pid):
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [child for child in (task / "children").read_text().split() if not alive(child)]
    return found


def descriptors(pid):
    """What a process has open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    return found


def resident_mb(pid):
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0
