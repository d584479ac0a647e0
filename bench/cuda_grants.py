#!/usr/bin/env python3
"""Two grants, as the Kubernetes plugin makes them, share a card: memory, what programs see of it, and its time.

  bench/cuda_grants.py [--seconds S] [--json FILE]

Grants of 16 GiB with a share of 25 and of 32 GiB with a share of 75. In each PyTorch takes all the memory that it gets, then works
without a pause. What NVML says of the whole card is read meanwhile, natively. It reads and changes no setting of a card.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.node import running  # noqa: E402
from harness.process import AVIARY, Wrong  # noqa: E402

PROGRAM = Path(__file__).parent / "cuda/granted.py"
GIB = 1 << 30
# Name, device memory in GiB, share in per cent.
GRANTS = (("quarter", 16, 25), ("rest", 32, 75))
SMI = ["nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]


class Card(threading.Thread):
    """The most MiB that NVML says are used on the card, natively."""

    def __init__(self):
        super().__init__(daemon=True)
        self.is_over, self.most, self.looks = threading.Event(), 0, 0

    def run(self):
        while not self.is_over.wait(0.2):
            self.most, self.looks = max(self.most, used()), self.looks + 1


def asked(prefix):
    text = subprocess.run([*prefix, *SMI], capture_output=True, text=True, check=True).stdout
    return [int(word) for word in text.splitlines()[0].split(",")]


def used():
    return asked([])[1]


def granted(node, folder):
    """The commands that run a program in each grant."""
    prefixes = []
    for name, gib, share in GRANTS:
        place = Path(folder) / name
        subprocess.run([AVIARY, "grant", name, "--server", node.address, "--socket", place, "--limit", f"device_memory@NVIDIA*={gib}G",
                        "--share", str(share)], check=True, stdout=subprocess.DEVNULL)
        prefixes.append([AVIARY, "run", "--server", f"unix:{place}/node.sock", "--"])
    return prefixes


def device_time(node):
    """Nanoseconds that each grant had of the scheduled device."""
    found = dict.fromkeys((name for name, _, _ in GRANTS), 0)
    for device in node.report()["devices"]:
        for one in device["tenants"]:
            if one["tenant"] in found:
                found[one["tenant"]] += one["used_ns"]
    return found


def heard(process):
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise Wrong(f"a program ended with status {process.wait()}")


def measured(arguments, folder):
    config = Path(folder) / "node.toml"
    config.write_text('[devices."*"]\nscheduler = "fair"\n', encoding="utf-8")
    begin, before = Path(folder) / "begin", used()
    with running({}, "--config", str(config), "--grants", str(Path(folder) / "grants")) as node:
        prefixes = granted(node, folder)
        card = Card()
        card.start()
        programs = [subprocess.Popen([*prefix, sys.executable, PROGRAM, str(arguments.seconds), str(begin)], stdout=subprocess.PIPE, text=True)
                    for prefix in prefixes]
        memory = [heard(program) for program in programs]
        smi = [asked(prefix) for prefix in prefixes]
        begin.touch()
        threading.Event().wait(1)
        times = [device_time(node)]
        threading.Event().wait(arguments.seconds - 2)
        times.append(device_time(node))
        work = [heard(program) for program in programs]
        ends = [program.wait() for program in programs]
        card.is_over.set()
        card.join()
        log = node.log.read_text(encoding="utf-8")
    if any(ends) or not all(one["right"] for one in work):
        raise Wrong(f"status {ends}, {work}: {log[-2000:]}")
    charged = {name: int(bytes_) for name, bytes_ in re.findall(r"contexts on \"(.*)\" are charged with (\d+) bytes", log)}
    return {"contexts": charged, "before_mib": before, "most_mib": card.most, "looks": card.looks, "memory": memory, "smi_mib": smi,
            "device_time": [times[1][name] - times[0][name] for name, _, _ in GRANTS], "steps": [one["steps"] for one in work]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aviary-cuda-grants-") as folder:
        os.chmod(folder, 0o755)
        figures = measured(arguments, folder)
    for (name, gib, share), memory, smi in zip(GRANTS, figures["memory"], figures["smi_mib"]):
        print(f"{name}, {gib} GiB and {share}%: PyTorch sees {memory['total'] / GIB:.3f} GiB, {memory['free'] / GIB:.3f} free, takes "
              f"{memory['taken'] / GIB:.3f}; nvidia-smi sees {smi[0]} MiB, {smi[1]} used")
    granted_mib = sum(gib for _, gib, _ in GRANTS) * 1024
    taken = figures["most_mib"] - figures["before_mib"]
    within = "within" if taken <= granted_mib else f"{taken - granted_mib} MiB MORE than"
    print(f"card: at most {taken} MiB more than before ({figures['looks']} looks): {within} both grants, {granted_mib} MiB")
    print(f"contexts are charged with: {figures['contexts'] or 'nothing'}")
    for what in ("device_time", "steps"):
        one, other = figures[what]
        print(f"{what}: 1 to {other / max(one, 1):.3f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
