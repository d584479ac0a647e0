#!/usr/bin/env python3
"""Tenants whose memory together is larger than the device they share: their shares of its time, and what the exchanges cost.

  bench/cuda_shared.py [--mib N] [--memory N] [--weights W,W...] [--seconds S] [--driver FOLDER] [--json FILE]

Each tenant's program has --mib of device memory and works on all of it without a pause, for a time that is the same for all; of
--memory MiB (`memory` in node.toml) the device shows so much. First all of them on a node with room for all: what they do there
together is what turns cost without swap. Then with swap. The steps of one program are then made natively, and its
memory must be equal. Meanwhile `aviary ps` is asked over and over: each tenant must have exactly as much memory as its program has
allocated, and all together no more on the device than there is. Needs root, as tenants are users. It reads and changes no setting of a card.
"""

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from cuda_move import HANG, compiled
from harness.node import running
from harness.process import AVIARY, Wrong

# Used by no user of any machine that we know.
FIRST_USER = 60001
# Seconds in which all programs allocate and fill their memory, before the measured time.
ATTACH_S = 25


def configured(folder, weights, mib, memory):
    lines = [f'parked_memory = "{2 * len(weights) * mib}M"']
    for number, weight in enumerate(weights):
        lines += [f"[tenants.t{number}]", f"users = [{FIRST_USER + number}]", f"weight = {weight}"]
    lines += ['[devices."*"]', 'scheduler = "fair"']
    if memory:
        lines += [f'memory = "{memory}M"', f"oversubscribe = {2 * len(weights) * mib / memory:.1f}"]
    path = Path(folder) / f"node-{memory}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Watcher(threading.Thread):
    """Looks at the accounts of a node's sessions until it is stopped."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node, self.is_over, self.looks = node, threading.Event(), []

    def run(self):
        while not self.is_over.is_set():
            report = self.node.report()
            if report:
                self.looks.append([counters(session) for session in report["sessions"]])

    def check(self, count, memory):
        """How many looks there were at all sessions; wrong: an account moved, or too much was on the device."""
        self.is_over.set()
        self.join()
        looks = [look for look in self.looks if len(look) == count]
        # While programs allocate their accounts grow.
        whole = [max(look[number][0] for look in looks) for number in range(count)] if looks else []
        begun = next((at for at, look in enumerate(looks) if [used for used, _ in look] == whole), len(looks))
        for look in looks[begun:]:
            if [used for used, _ in look] != whole:
                raise Wrong(f"device_memory is {[used for used, _ in look]} instead of {whole}")
            if memory and sum(there for _, there in look) > memory << 20:
                raise Wrong(f"{sum(there for _, there in look)} bytes are on the device")
        return len(looks) - begun


def counters(session):
    """Bytes of device memory that a session has, and what of that is on a device."""
    found = session.get("counters", {})
    of = lambda name: sum(bytes for key, bytes in found.items() if key.startswith(f"{name}@") and key.endswith(".used"))  # noqa: E731
    return of("device_memory"), of("resident_memory")


def together(program, weights, arguments, memory, vendor):
    """Steps in the measured time, steps in all, and the digest of each tenant's program; what `aviary ps` says of swaps at the end, and
    at how many looks the accounts were right."""
    with tempfile.TemporaryDirectory(prefix="aviary-cuda-shared-") as folder:
        os.chmod(folder, 0o755)
        with running(vendor, "--config", configured(folder, weights, arguments.mib, memory), "--mode", "666") as node:
            os.chmod(Path(node.address.removeprefix("unix:")).parent, 0o755)
            os.chmod(Path(node.address.removeprefix("unix:")).parent.parent, 0o755)
            begin = time.monotonic() + ATTACH_S
            guests = []
            for number in range(len(weights)):
                home = Path(folder) / f"home{number}"
                home.mkdir()
                home.chmod(0o777)
                user = FIRST_USER + number
                command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", AVIARY, "run", "--api", "cuda",
                           "--server", node.address, "--", program, arguments.mib, begin, begin + arguments.seconds]
                guests.append(subprocess.Popen([str(word) for word in command], env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home)},
                                               stdout=subprocess.PIPE, text=True))
            time.sleep(max(0, begin - 2 - time.monotonic()))
            watcher = Watcher(node)
            watcher.start()
            time.sleep(max(0, begin + arguments.seconds - 1 - time.monotonic()))
            looks = watcher.check(len(weights), memory)
            sessions = node.report()["sessions"]
            swaps = [{"tenant": session["tenant"], **(session.get("swapped") or {})} for session in sessions]
            return [told(guest) for guest in guests], swaps, looks


def told(guest):
    output, _ = guest.communicate(timeout=HANG)
    lines = [line.split() for line in output.splitlines()]
    found = {line[0]: line[1:] for line in lines if line}
    if guest.returncode or "steps" not in found or "digest" not in found:
        raise Wrong(f"status {guest.returncode}: {output[-300:]!r}")
    return int(found["steps"][0]), int(found["steps"][1]), found["digest"][0]


def natively(program, mib, steps, vendor):
    done = subprocess.run([program, str(mib)], input="\n" * steps, capture_output=True, text=True, check=True, env={**os.environ, **vendor})
    return done.stdout.split()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=20480)
    parser.add_argument("--memory", type=int, default=54 << 10)
    parser.add_argument("--weights", default="1,1,1,1")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--driver", type=lambda path: Path(path).resolve())
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    weights = [int(weight) for weight in arguments.weights.split(",")]
    vendor = {"LD_LIBRARY_PATH": str(arguments.driver)} if arguments.driver else {}
    figures = {}
    with tempfile.TemporaryDirectory(prefix="aviary-cuda-resident-") as folder:
        os.chmod(folder, 0o755)
        program = compiled(folder, arguments.driver)
        for name, memory in (("room", 0), ("swap", arguments.memory)):
            rows, swaps, looks = together(program, weights, arguments, memory, vendor)
            steps = [row[0] for row in rows]
            shares = [count / max(sum(steps), 1) for count in steps]
            figures[name] = {"steps": steps, "shares": shares, "swaps": swaps, "looks": looks}
            print(f"{name}: {sum(steps)} steps in {arguments.seconds:g} s, shares {' '.join(f'{share:.3f}' for share in shares)}; "
                  f"out {' '.join(str(swap.get('outs', 0)) for swap in swaps)}; accounts right at {looks} looks", flush=True)
        figures["throughput"] = sum(figures["swap"]["steps"]) / max(sum(figures["room"]["steps"]), 1)
        print(f"throughput with swap: {figures['throughput']:.3f}", flush=True)
        _, count, found = min(rows, key=lambda row: row[1])
        expected = natively(program, arguments.mib, count, vendor)
        if found != expected:
            raise Wrong(f"{count} steps: {found} instead of {expected}")
        print(f"the memory of the tenant with {count} steps is as natively")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
