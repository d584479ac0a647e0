"""What long copies over TLS on loopback cost: speed, and CPU seconds per GB of each process and of its threads. testapi's copies are
`memcpy`; there is no device. Needs neither namespaces nor a second machine."""

import contextlib
import os
import tempfile
from pathlib import Path

from harness.process import AVIARY, run
from netcalls import Session

MIB, STRANDS = 64, (1, 4)
COUNT, COUNT_QUICK = 20, 4
FIGURES = {
    f"netbulk.{way}.{strands}.{name}": f"{MIB} MiB {way} over TLS on loopback, {strands} strands: {what}"
    for way in ("in", "out")
    for strands in STRANDS
    for name, what in (
        ("GBps", "GB/s"),
        ("cpu_per_GB", "CPU seconds per GB of all processes"),
        ("busiest_per_GB", "... of the busiest thread, which is its most speed"),
    )
}


def used(pid):
    """By id: the name of each thread of a process, and its CPU seconds."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            seconds = int((task / "schedstat").read_text(encoding="utf-8").split()[0]) / 1e9
            found[task.name] = ((task / "comm").read_text(encoding="utf-8").strip(), seconds)
    return found


def copied(session, way, gigabytes):
    """Speed of one run in GB/s, and by process the CPU seconds per GB of its threads."""
    pids = {name: [pid for pid in found if os.path.exists(f"/proc/{pid}")] for name, found in session.processes().items()}
    before = {name: [used(pid) for pid in found] for name, found in pids.items()}
    median = session.ask(way)
    threads = {}
    for name, found in pids.items():
        for pid, earlier in zip(found, before[name]):
            for task, (thread, seconds) in used(pid).items():
                spent = seconds - earlier.get(task, (thread, 0.0))[1]
                threads.setdefault(name, []).append((spent / gigabytes, thread))
    return (MIB << 20) / 1e3 / median, threads


def shown(way, strands, speed, threads):
    print(f"{way}, {strands} strands: {speed:.2f} GB/s; CPU seconds per GB:")
    for process, spent in threads.items():
        parts = ", ".join(f"{thread} {seconds:.3f}" for seconds, thread in sorted(spent, reverse=True) if seconds >= 0.005)
        print(f"  {process:11} {sum(seconds for seconds, _ in spent):6.3f}  {parts}")


def netbulk(quick):
    count, figures = COUNT_QUICK if quick else COUNT, {}
    with tempfile.TemporaryDirectory() as folder:
        run([AVIARY, "tls", "init", folder, "--tenant", "bench"])
        for strands in STRANDS:
            with contextlib.ExitStack() as stack:
                serve, options = ["--tls-dir", f"{folder}/node"], ["--tls-dir", f"{folder}/tenant-bench", "--strands", str(strands), "--no-compression"]
                session = Session(stack, "netbulk", [MIB, count], serve, options)
                for way in ("in", "out"):
                    session.ask(way)
                    speed, threads = copied(session, way, count * (MIB << 20) / 1e9)
                    shown(way, strands, speed, threads)
                    spent = [seconds for found in threads.values() for seconds, _ in found]
                    name = f"netbulk.{way}.{strands}"
                    figures |= {f"{name}.GBps": speed, f"{name}.cpu_per_GB": sum(spent), f"{name}.busiest_per_GB": max(spent)}
    return figures
