"""Delegated calls beside lanes, and the figures of the paper (Wormhole) that they can be laid beside: counts, shares and ratios. Calls are
borrowed in a twin (crates/server/examples/twin), which protects nothing; VMFUNC runs in an emulator (delegation/bare)."""

import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from asleep import between, call, server_of, spent
from callcost import FIRST
from harness.process import APIS, AVIARY, ROOT, Failure, Skipped, run
from measure import BUILD, compile_c, measured, remoted, test_library

TWIN = ROOT / "target/release/examples/libtwin.so"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
TURNS = 5
TURNS_AWAKE, CALLS_AWAKE = 30, 2000
# Calls of each kind in a round of the program's mix, and how many of the paper's five most frequent ones are of that kind.
KINDS = {"transfer": (2, "cudaMemcpy: 26"), "argument": (4, "curandSet...: 49"), "launch": (1, "cudaLaunch: 13"), "query": (1, "cudaPeekAtLastError: 12")}
MIX = "mix"
ROUND = sum(calls for calls, _ in KINDS.values())
# Who spends: total, user and system seconds, CPU use in percent, as the paper has them.
SIDES = {
    "native": ("natively, on one CPU", (6.947, 4.494, 2.264, 97.28)),
    "two.server": ("lanes on two CPUs: API server, as GVirtuS's back end", (94.705, 11.833, 32.306, 46.61)),
    "two.guest": ("lanes on two CPUs: program, as GVirtuS's front end", (93.990, 6.498, 29.706, 38.52)),
    "one.server": ("lanes on one CPU: API server", None),
    "one.guest": ("lanes on one CPU: program", None),
    "borrowed": ("borrowed in a twin on one CPU, as in Wormhole", (12.145, 9.474, 2.661, 99.92)),
}
COLUMNS = ("total_s", "user_s", "system_s", "cpu_percent")
ROWS = {
    "delegated": "delegated call",
    "by_exits": "the same with exits in place of VMFUNC",
    "arch_prctl": "the same with arch_prctl in place of WRFSBASE",
    "plain": "plain call",
}

FIGURES = {
    "delegate.calls.borrowed_cpu_ns": "CPU time of both sides for a synchronous call that the caller executes in a twin",
    "delegate.calls.one_cpu_ns": "... through a lane, both sides on one CPU",
    "delegate.calls.awake_cpu_ns": "... through a lane on two CPUs, where both sides stay awake",
    "delegate.calls.vs_one_cpu": "... borrowed / one CPU (target <= 0.1)",
    "delegate.calls.vs_awake": "... borrowed / awake (target <= 1.0)",
    "delegate.figure2.notice_percent": "Figure 2: a bare pair's wake-ups / a call through a lane that sleeps, in percent (paper: 87)",
    **{
        f"delegate.table1.{kind}.percent": f"Table 1: these calls of an OpenCL program's {ROUND} a round, in percent (paper, of its five: {paper})"
        for kind, (_, paper) in KINDS.items()
    },
    **{
        f"delegate.table1.{kind}.{what}_percent": f"... {text}, {'where they are alone' if kind != MIX else 'all in turn'}"
        for kind in (*KINDS, MIX)
        for what, text in (
            ("asynchronous", "sent without waiting"),
            ("local", "answered in the program"),
            ("borrowed", "in a twin borrowed to their end"),
            ("handed_over", "in a twin borrowed and handed over"),
        )
    },
    **{
        f"delegate.table4.{side}.{column}": f"Tables 2 and 4, {name}" + (f" (paper: {paper[index]})" if paper else "")
        for side, (name, paper) in SIDES.items()
        for index, column in enumerate(COLUMNS)
    },
    **{f"delegate.ticks.{row}": f"instructions of the emulator, with the loop: {name}" for row, name in ROWS.items()},
    **{f"delegate.exits.{row}": f"exits per call: {name}" for row, name in ROWS.items()},
    "delegate.exitless_ratio": "5.1: ticks of the switch / the same with exits in place of VMFUNC (paper: 0.494)",
    "delegate.figure7.switch_percent": "Figure 7: the switch, of the instructions of a whole call (paper: VMFUNC 5.31 + FS, GS 10.64)",
    "delegate.figure7.arch_prctl_percent": "... with arch_prctl, as the paper has it",
}


def twin(api, **variables):
    """The environment in which a program has its API servers in its own process."""
    if not TWIN.exists():
        raise Failure(f"there is no {TWIN}: ./x setup builds it")
    tunables = "glibc.pthread.stack_cache_size=0:glibc.pthread.rseq=0"
    return {"LD_PRELOAD": str(TWIN), "AVIARY_TWIN": str(APIS), "GLIBC_TUNABLES": tunables, **variables}


def pinned():
    """What a command begins with that has one CPU."""
    return ["taskset", "-c", str(min(os.sched_getaffinity(0)))]


def calls(quick):
    """CPU time of a synchronous call: borrowed, through a lane whose server sleeps, and through one that is awake. The least of each:
    whatever else the machine does only adds."""
    _, environment = test_library()
    program = compile_c("asleep", "-I", ROOT / "apis/testapi/include", "-L", BUILD / "testapi", "-ltestapi")
    count = 20_000 if quick else 100_000
    vendor = str(BUILD / "testapi/libtestapi.so.1")
    borrowing = twin("testapi", AVIARY_VENDOR_TESTAPI=vendor, LD_LIBRARY_PATH=str(APIS / "testapi"))
    borrowed, one, awake, pair = [], [], [], []
    for _ in range(TURNS):
        before, after, _ = between([*FIRST, *pinned(), program, "calls", str(count)], borrowing, spent)
        borrowed.append((after[0] - before[0]) / count)
        one.append(call(program, count // 4, environment, [*FIRST, *pinned()])["asleep_cpu_ns"])
        pair.append(measured([*FIRST, *pinned(), program, "pair", str(count // 4)], env=environment)["cpu_ns"])
    # Both are awake as long as nobody else wants one of their CPUs: for a moment at a time.
    for _ in range(TURNS_AWAKE):
        awake.append(call(program, CALLS_AWAKE, environment, FIRST)["asleep_cpu_ns"])
    borrowed, one, awake, pair = map(min, (borrowed, one, awake, pair))
    return {
        "delegate.calls.borrowed_cpu_ns": borrowed,
        "delegate.calls.one_cpu_ns": one,
        "delegate.calls.awake_cpu_ns": awake,
        "delegate.calls.vs_one_cpu": borrowed / one,
        "delegate.calls.vs_awake": borrowed / awake,
        "delegate.figure2.notice_percent": 100 * pair / one,
    }


class OpenCl:
    """The program of OpenCL calls with PoCL: natively, through lanes, in a twin."""

    def __init__(self, folder):
        known = Path("/etc/OpenCL/vendors/pocl.icd")
        if not known.is_file():
            raise Skipped("PoCL is not installed")
        vendors = folder / "vendors"
        vendors.mkdir()
        (vendors / "pocl.icd").write_text(known.read_text())
        # As many threads of the device as a program on one CPU has.
        self.native = {"OCL_ICD_VENDORS": str(vendors), "POCL_CACHE_DIR": str(folder), "POCL_MAX_PTHREAD_COUNT": "1"}
        self.counts = folder / "counts"
        self.twin = self.native | twin("opencl", AVIARY_TWIN_VARIABLES=f"OCL_ICD_VENDORS={vendors}", AVIARY_TWIN_COUNTS=str(self.counts),
                                       OCL_ICD_VENDORS=str(APIS / "opencl/vendors"))
        self.program = compile_c("delegated", "-lOpenCL")

    def command(self, kind, count):
        return [self.program, kind, str(count)]

    def sent(self, kind, count):
        """Messages through a lane for so many calls: synchronous and asynchronous ones."""
        before, after, _ = between(remoted(self.command(kind, count), "--api", "opencl"), self.native, settled)
        return after["calls"] - before["calls"], after["async_calls"] - before["async_calls"]

    def borrowed(self, kind, count):
        """How many attempts returned and were handed over, of a whole run."""
        between([*pinned(), *self.command(kind, count)], self.twin, lambda _: None)
        words = self.counts.read_text().split()
        return int(words[1]), int(words[3])


def settled(guest):
    """The counters of a program's session, which its lane reports when it has nothing else to do."""
    counters, before = None, {}
    while counters != before:
        before = counters
        time.sleep(0.1)
        reports = json.loads(run([AVIARY, "ps", "--json"]))
        sessions = [session for report in reports for session in report["sessions"] if session["guest"] == guest]
        counters = {name: sessions[0]["counters"][name] for name in ("calls", "async_calls")}
    return counters


def table1(quick):
    count = 1000 if quick else 5000
    figures = {f"delegate.table1.{kind}.percent": 100 * calls / ROUND for kind, (calls, _) in KINDS.items()}
    with tempfile.TemporaryDirectory() as folder:
        opencl = OpenCl(Path(folder))
        for kind in (*KINDS, MIX):
            calls_made = count * (ROUND if kind == MIX else 1)
            synchronous, asynchronous = opencl.sent(kind, count)
            # The beginning and the end of the program are in both.
            few, many = opencl.borrowed(kind, count), opencl.borrowed(kind, 2 * count)
            numbers = {
                "asynchronous": asynchronous,
                "local": calls_made - synchronous - asynchronous,
                "borrowed": many[0] - few[0],
                "handed_over": many[1] - few[1],
            }
            figures |= {f"delegate.table1.{kind}.{name}_percent": 100 * max(0, number) / calls_made for name, number in numbers.items()}
    return figures


def seconds_of(process):
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) / TICKS_PER_SECOND, int(fields[12]) / TICKS_PER_SECOND


def table4(quick):
    rounds, rows = 5000 if quick else 50_000, {}
    with tempfile.TemporaryDirectory() as folder:
        opencl = OpenCl(Path(folder))
        command = opencl.command("mix", rounds)
        both = lambda guest: (seconds_of(guest), seconds_of(server_of(guest)))
        alone = lambda process: (seconds_of(process),)
        runs = (
            ([*pinned(), *command], opencl.native, alone, ("native",)),
            (remoted(command, "--api", "opencl"), opencl.native, both, ("two.guest", "two.server")),
            ([*pinned(), *remoted(command, "--api", "opencl")], opencl.native, both, ("one.guest", "one.server")),
            ([*pinned(), *command], opencl.twin, alone, ("borrowed",)),
        )
        for started, environment, look, names in runs:
            before, after, total = between(started, environment, look)
            for name, then, now in zip(names, before, after):
                user, system = now[0] - then[0], now[1] - then[1]
                rows[name] = (total, user, system, 100 * (user + system) / total)
    return {f"delegate.table4.{side}.{column}": value for side in SIDES for column, value in zip(COLUMNS, rows[side])}


def emulated(_quick):
    """Exits and ticks of calls by VMFUNC and without, and what they are of a whole call."""
    done = subprocess.run([ROOT / "tests/delegate/bare/run", "domain"], capture_output=True, text=True, timeout=600, check=False)
    if "skip" in done.stdout:
        raise Skipped(done.stdout.strip().splitlines()[0])
    figures = {}
    for row, name in ROWS.items():
        found = re.search(rf"^figure: domain: {re.escape(name)}: (\d+) exits, (\d+) ticks a call$", done.stdout, re.M)
        if done.returncode or not found:
            raise Failure(f"tests/delegate/bare/run: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        figures[f"delegate.exits.{row}"], figures[f"delegate.ticks.{row}"] = map(int, found.groups())
    switch, by_exits, by_arch_prctl = (figures[f"delegate.ticks.{row}"] - figures["delegate.ticks.plain"] for row in ("delegated", "by_exits", "arch_prctl"))
    # What both sides execute for a call without the switch, as callcost counts it.
    counted = json.loads((ROOT / "bench/instructions.json").read_text(encoding="utf-8"))
    own = counted["calls.instructions_sync_guest"] + counted["calls.instructions_sync_server"]
    return figures | {
        "delegate.exitless_ratio": switch / by_exits,
        "delegate.figure7.switch_percent": 100 * switch / (switch + own),
        "delegate.figure7.arch_prctl_percent": 100 * by_arch_prctl / (by_arch_prctl + own),
    }


def benchmarks():
    """As bench.py lists them."""
    parts = {"calls": (calls, ("calls.", "figure2.")), "table1": (table1, ("table1.",)), "table4": (table4, ("table4.",)),
             "emulated": (emulated, ("ticks.", "exits.", "exitless", "figure7."))}
    return {f"delegate.{part}": (measure, [name for name in FIGURES if name.startswith(tuple(f"delegate.{start}" for start in starts))])
            for part, (measure, starts) in parts.items()}
