#!/usr/bin/env python3
"""Benchmarks: a table for people, flat JSON for machines.

Every ratio is Aviary against native, measured side by side in one run: the two
take turns, so that a change of the machine's mood meets both.
"""

import argparse
import fnmatch
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import apis  # noqa: E402
import asleep  # noqa: E402
import callcost  # noqa: E402
import claims  # noqa: E402
import delegate  # noqa: E402
import fair  # noqa: E402
import fpga  # noqa: E402
import idle  # noqa: E402
import keep  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import moves  # noqa: E402
import net  # noqa: E402
import netbulk  # noqa: E402
import netcalls  # noqa: E402
import policies  # noqa: E402
import recording  # noqa: E402
import sandbox  # noqa: E402
import slicing  # noqa: E402
import upgrade  # noqa: E402
import vm  # noqa: E402
from harness.process import ROOT, Failure, Skipped  # noqa: E402

# Python that has matplotlib.
PLOTTER = ROOT / "target/cache/matplotlib/bin/python"

# Every figure and what it means.
FIGURES = {
    "shm.pingpong_ns": "bare cache line, one core to another and back",
    "shm.sync_noop_ns": "synchronous no-op through the generated stack",
    "shm.sync_noop_ratio": "... against the bare round trip (target <= 3)",
    "shm.async_issue_ns": "issuing an asynchronous no-op (target <= 150)",
    "shm.async_stream_ns": "asynchronous no-ops, issued and executed",
    "shm.attach_ms": "first call of a process, from the warm pool (target <= 20)",
    "stream.sync_noop_ns": "synchronous no-op, carried over a socket",
    "calls.syscalls_per_sync_call": "system calls of guest, API server and node per synchronous call",
    "calls.syscalls_per_async_call": "... per asynchronous call",
    "calls.movable_sync": "what a session that can be moved adds to the instructions of a synchronous call in the API server (target <= 0.05)",
    "calls.movable_async": "... of an asynchronous call",
    "calls.instructions_sync_guest": "instructions of a synchronous call in the guest, without waiting",
    "calls.instructions_sync_server": "... in the API server",
    "calls.instructions_async_guest": "... of an asynchronous call in the guest",
    "calls.instructions_async_server": "... in the API server",
    "breakdown.issue_ns": "stub, encoding, publishing: one of many asynchronous calls",
    "breakdown.there_ns": "from the call to the library: issuing, from core to core, waking if asleep, noticing, decoding",
    "breakdown.server_ns": "decoding, gate, handler, library: one call of a long stream",
    "breakdown.vendor_ns": "the library's own function",
    "breakdown.back_ns": "encoding the reply, from core to core, waking if asleep, noticing, decoding",
    "breakdown.whole_ns": "the synchronous call from its beginning to its end",
    "breakdown.asleep_cpu_ns": "CPU time of both sides for a synchronous call whose API server sleeps, on one CPU (target <= 6000)",
    "breakdown.asleep_switches": "... context switches of both (target <= 2.1)",
    "breakdown.asleep_pair_ns": "... CPU time of two bare processes that wake each other by a futex",
    "breakdown.asleep_ratio": "... the call against the bare pair (target <= 1.25)",
    "bulk.write_4KiB_ratio": "native time / Aviary time, 4 KiB write",
    "bulk.read_4KiB_ratio": "... 4 KiB read",
    "bulk.write_1MiB_ratio": "... 1 MiB write (target >= 0.95)",
    "bulk.read_1MiB_ratio": "... 1 MiB read (target >= 0.95)",
    "bulk.write_64MiB_ratio": "... 64 MiB write (target >= 0.95)",
    "bulk.read_64MiB_ratio": "... 64 MiB read (target >= 0.95)",
    "heap.without_write_1MiB_ratio": "native time / Aviary time, 1 MiB write that the vendor's library makes",
    "heap.write_1MiB_ratio": "... with --share-heap (target >= 0.95)",
    "heap.without_read_1MiB_ratio": "... 1 MiB read",
    "heap.read_1MiB_ratio": "... with --share-heap (target >= 0.95)",
    "heap.without_write_64MiB_ratio": "... 64 MiB write",
    "heap.write_64MiB_ratio": "... with --share-heap (target >= 0.95)",
    "heap.without_read_64MiB_ratio": "... 64 MiB read",
    "heap.read_64MiB_ratio": "... with --share-heap (target >= 0.95)",
    "bulk.map_1MiB_ratio": "... map, touch, unmap 1 MiB",
    "bulk.launch_finish_ratio": "... launch of a small kernel and finish",
    "net.rtt_ms": "round trip of the link between two namespaces: 1 ms each way, 1 Gbit/s",
    "net.sync_rtts": "synchronous no-op over it with TLS, in round trips",
    "net.async1000_plus_sync_rtts": "1000 asynchronous calls and a synchronous one, in round trips (target < 1.5)",
    "net.bulk_vs_iperf3": "64 MiB write and read, the slower one, against iperf3 over the same link (target >= 0.9)",
    "net.bulk_write_MBps": "... the write",
    "net.bulk_read_MBps": "... the read",
    "net.small_during_bulk_ms": "synchronous no-op of another thread meanwhile, median",
    "net.small_during_bulk_p99_ms": "... 99th percentile",
    "net.rtt_during_iperf3_ms": "... a small UDP packet's round trip while iperf3 fills the same link",
    "net.unlimited_write_MBps": "64 MiB write over a veth pair without delay or limit, TLS",
    "net.unlimited_read_MBps": "... the read",
    "net.unlimited_iperf3_MBps": "... iperf3",
    "net.unlimited_sync_us": "... a synchronous no-op",
    "programs.compute_geomean": "compute-bound programs, Aviary time / native time (target <= 1.05)",
    "programs.call_geomean": "call-bound programs, Aviary time / native time (target <= 1.25)",
    "programs.different": "programs whose results differ from native (target 0)",
    "idle.cpu_percent": "1,000 idle sessions of testapi: processor time of all processes over 10 s (target 0)",
    "idle.wakeups_per_s": "... context switches of all their threads (target 0)",
    "idle.rss_mb_1000_sessions": "... memory of node and API servers, shared pages counted once (target < 1500)",
    "idle.guests_mb_1000_sessions": "... memory of the guests",
    "idle.busy_ratio": "... calls per second of one busy session among them / alone (target >= 0.95)",
    "upgrade.sessions": "programs of testapi under load while node and API servers are replaced",
    "upgrade.lost": "... those that were lost (target 0)",
    "upgrade.longest_call_ms": "... the longest call of all, as the programs see it (target <= 1000)",
    "upgrade.median_longest_call_ms": "... the longest call of a program, median of the programs",
    "upgrade.usual_longest_call_ms": "... the longest call of all without an upgrade",
    "upgrade.longest_stop_ms": "... the longest stop, as the node sees it",
    "upgrade.median_stop_ms": "... the median stop",
    "upgrade.calls_per_s": "... calls of all programs together",
    "idle.opencl_cpu_percent": "the same with OpenCL, each with a context and a queue",
    "idle.opencl_wakeups_per_s": "...",
    "idle.opencl_rss_mb_1000_sessions": "...",
    "idle.opencl_guests_mb_1000_sessions": "...",
    "idle.opencl_busy_ratio": "...",
    "slicing.1.overhead": "product of matrices on PoCL, in one piece: time / time in one piece, minus 1 (what the others are uncertain by)",
    **{f"slicing.{parts}.overhead": f"... as {parts} sub-launches" for parts in slicing.PARTS[1:]},
    "slicing.chosen.overhead": "... with a slice of 6 ms, sub-launches as long as that says (target <= 0.05)",
    **{f"slicing.{parts}.processor": "... processor time of all processes instead of time" for parts in (*slicing.PARTS, "chosen")},
    "slicing.chosen.parts": "... how many they were",
    "slicing.chosen.longest_ms": "... the longest of them",
    "slicing.long_s": "a kernel that takes long, in one piece",
    "slicing.long_overhead": "... with a slice of 6 ms: time / time in one piece, minus 1",
    "slicing.longest_ms": "... its longest sub-launch (target <= 12)",
    "slicing.late_percent": "... sub-launches longer than 12 ms",
    "policy.decision_ns": "a decision of Figure 7's policy, 64 tenants (target <= 100)",
    "policy.consume_ns": "... a report to it",
    "policy.interpreted_ns": "... a decision without machine code",
    "policy.verify_ms": "... reading and verifying its object",
    "policy.slowest_decision_ns": "a decision or report, the slowest among those of policies/*.c",
    **netcalls.FIGURES,
    **netbulk.FIGURES,
    **apis.FIGURES,
    **vm.FIGURES,
    **fpga.FIGURES,
    **delegate.FIGURES,
    **moves.FIGURES,
    **recording.FIGURES,
    **claims.FIGURES,
    "sandbox.attach_on_ms": "first call of a process on a node with sandboxes",
    "sandbox.attach_off_ms": "... on one without",
    "sandbox.attach_more_ms": "... the difference (target <= 3)",
    "sandbox.sync_ratio": "a synchronous call in a sandbox against one without (target <= 1.01)",
    "sandbox.write_1MiB_ratio": "bulk data, the same",
    "sandbox.read_1MiB_ratio": "...",
    "sandbox.write_64MiB_ratio": "...",
    "sandbox.read_64MiB_ratio": "...",
    "kills.count": "guests, API servers and nodes killed at random points under load",
    "kills.problems": "... what hung, leaked or was wrong after them (target 0)",
    "kills.slowest_end_s": "... longest time from a death to the end of who depended on it (target < 2)",
}

# Benchmark, the function that measures it, the figures it is asked for.
BENCHMARKS = {
    "shm.pingpong": (measure.pingpong, ["shm.pingpong_ns"]),
    "shm.calls": (measure.calls, [name for name in FIGURES if name.startswith("shm.") and "pingpong" not in name]),
    "stream.calls": (measure.stream_calls, [name for name in FIGURES if name.startswith("stream.")]),
    "calls.syscalls": (callcost.syscalls, [name for name in FIGURES if name.startswith("calls.syscalls")]),
    "calls.instructions": (callcost.instructions, [name for name in FIGURES if name.startswith("calls.instructions")]),
    "calls.movable": (callcost.movable, [name for name in FIGURES if name.startswith("calls.movable")]),
    "breakdown": (measure.breakdown, [name for name in FIGURES if name.startswith("breakdown.") and "asleep" not in name]),
    "breakdown.asleep": (asleep.asleep, [name for name in FIGURES if name.startswith("breakdown.asleep")]),
    "bulk": (measure.bulk, [name for name in FIGURES if name.startswith("bulk.")]),
    "heap": (measure.heap, [name for name in FIGURES if name.startswith("heap.")]),
    "net": (net.net, [name for name in FIGURES if name.startswith("net.")]),
    "netcalls": (netcalls.netcalls, list(netcalls.FIGURES)),
    "netbulk": (netbulk.netbulk, list(netbulk.FIGURES)),
    "slicing": (slicing.slicing, [name for name in FIGURES if name.startswith("slicing.")]),
    "programs": (measure.programs, [name for name in FIGURES if name.startswith("programs.")]),
    "idle.testapi": (idle.of_testapi, [name for name in FIGURES if name.startswith("idle.") and "opencl" not in name]),
    "policies": (policies.decisions, [name for name in FIGURES if name.startswith("policy.")]),
    "vm.calls": (vm.calls, [name for name in vm.FIGURES if name.endswith("_ns") or "_vs_" in name]),
    "vm.counts": (vm.counts, [name for name in vm.FIGURES if "_per_" in name or name.endswith(("_percent", "_to_wake"))]),
    "vm.bulk": (vm.bulk, [name for name in vm.FIGURES if "64MiB" in name or "crossover" in name]),
    "apis.isal": (apis.isal, [name for name in apis.FIGURES if "isal" in name]),
    "apis.onnxruntime": (apis.onnxruntime, [name for name in apis.FIGURES if "onnxruntime" in name]),
    "apis.pjrt": (apis.pjrt, [name for name in apis.FIGURES if "pjrt" in name]),
    "sandbox": (sandbox.sandbox, [name for name in FIGURES if name.startswith("sandbox.")]),
    "kills": (measure.kills, [name for name in FIGURES if name.startswith("kills.")]),
    "upgrade": (upgrade.upgrade, [name for name in FIGURES if name.startswith("upgrade.")]),
    "move": (moves.moves, list(moves.FIGURES)),
    "recording": (recording.recording, list(recording.FIGURES)),
    "cluster": (claims.claims, list(claims.FIGURES)),
    "idle.opencl": (idle.of_opencl, [name for name in FIGURES if name.startswith("idle.opencl_")]),
}
BENCHMARKS |= delegate.benchmarks()
BENCHMARKS |= fpga.benchmarks()
BENCHMARKS |= {f"fair.{name}": (measured, [f"fair.{name}."]) for name, measured in fair.EXPERIMENTS.items()}


def meaning(figure):
    """What a figure's name stands for."""
    return FIGURES.get(figure) or vm.meaning(figure) or moves.meaning(figure) or (fair.FIGURES.get(figure.rsplit(".", 1)[1], "") if figure.startswith("fair.") else "")


def selected(names):
    """The benchmarks named, or that give a figure named; patterns and beginnings of names will do."""
    if not names:
        return list(BENCHMARKS)
    chosen = [
        benchmark
        for benchmark, (_, figures) in BENCHMARKS.items()
        if any(fnmatch.fnmatch(known, name + "*") for known in [benchmark, *figures] for name in names)
    ]
    if not chosen:
        sys.exit(f"bench: nothing is called {' or '.join(names)}; there is: {' '.join(BENCHMARKS)}")
    return chosen


def derive(results):
    """Figures that follow from others."""
    if results.get("shm.pingpong_ns") and "shm.sync_noop_ns" in results:
        results["shm.sync_noop_ratio"] = results["shm.sync_noop_ns"] / results["shm.pingpong_ns"]


def bars(results):
    """The breakdown as a picture."""
    parts = {name: value for name, value in results.items() if name.startswith("breakdown.") and "asleep" not in name}
    widest = max([*parts.values(), 1.0])
    for name, value in parts.items():
        print(f"  {name.removeprefix('breakdown.'):20} {value:8.1f}  {'#' * max(0, round(40 * value / widest))}")


def plot(results, json_file):
    """Pictures of what plots.py can draw, beside the JSON file, or where bench builds its programs."""
    if not any(name.startswith(("fair.", "vm.bulk.", "fpga.")) for name in results):
        return
    if not PLOTTER.exists():
        print("plots are skipped: matplotlib is not there (./x setup installs it)", file=sys.stderr)
        return
    start = Path(json_file).with_suffix("") if json_file else measure.BUILD / "bench"
    measure.BUILD.mkdir(parents=True, exist_ok=True)
    command = [PLOTTER, Path(__file__).with_name("plots.py"), start]
    done = subprocess.run(command, input=json.dumps(results), capture_output=True, text=True, check=False)
    print(done.stdout if done.returncode == 0 else f"plots are skipped: {done.stderr.strip()[-500:]}", end="", file=sys.stderr)


def table(results, about):
    print(f"\n{about['cpu']}, {about['cpus']} CPUs, {about['system']}, {about['date']}, load {about['load']}")
    width = max((len(name) for name in results), default=0)
    for name, value in results.items():
        print(f"  {name:{width}}  {value:12.3f}  {meaning(name)}".rstrip())


def main():
    parser = argparse.ArgumentParser(prog="./x bench", description="Measure Aviary against native.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark, a figure, or a pattern (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write name -> number")
    parser.add_argument("--record", metavar="FILE", help="append the results, with machine, load and date, as one JSON line")
    parser.add_argument("--keep", metavar="SUITE", help="write bench/results/SUITE/DATE-MACHINE-COMMIT.json and .md")
    parser.add_argument("--quick", action="store_true", help="shorter measurements")
    parser.add_argument("--count", type=int, help="how many kills (default: 1000)")
    parser.add_argument("--long", type=float, default=slicing.LONG_SECONDS, help="seconds of slicing's long kernel (default: 10)")
    parser.add_argument(
        "--scheduler",
        action="append",
        choices=fair.SCHEDULERS,
        default=[],
        help="only this one, where fair.* compares schedulers; may be given more than once (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="name the benchmarks and their figures")
    arguments = parser.parse_args()
    if arguments.list:
        for name, (_, figures) in BENCHMARKS.items():
            print(f"{name:14} {' '.join(figures)}")
        return 0

    measure.KILLS = arguments.count or (measure.KILLS_QUICK if arguments.quick else measure.KILLS)
    slicing.LONG_SECONDS = arguments.long
    fair.CHOSEN = arguments.scheduler
    about, results, failed = machine.describe(), {}, []
    for name in selected(arguments.names):
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            results.update(BENCHMARKS[name][0](arguments.quick))
        except Skipped as reason:
            print(f"bench: {name} is skipped: {reason}", file=sys.stderr)
        except Failure as failure:
            failed.append(name)
            print(f"bench: {name}: {failure}", file=sys.stderr)
        except KeyboardInterrupt:
            # Figures that were measured before are shown.
            failed.append(name)
            print(f"bench: {name} is interrupted", file=sys.stderr)
            break
    derive(results)
    about["load_after"] = machine.load()
    table(results, about)
    bars(results)
    if arguments.json:
        numbers = results | {f"meta.{key}": about[key] for key in ("cpus", "load", "load_after", "unix_time")}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(numbers, file, indent=2)
            file.write("\n")
    plot(results, arguments.json)
    if arguments.record:
        with open(arguments.record, "a", encoding="utf-8") as file:
            file.write(json.dumps({"machine": about, "results": results}) + "\n")
    if arguments.keep:
        words = [word for word in sys.argv[1:] if word not in ("--keep", arguments.keep)]
        print(keep.keep(arguments.keep, words, about, results, meaning), file=sys.stderr)
    if failed:
        print(f"\nfailed: {' '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    start = time.monotonic()
    status = main()
    print(f"({time.monotonic() - start:.0f} s)", file=sys.stderr)
    sys.exit(status)
