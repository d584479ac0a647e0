"""The checks behind tests/run. Each prints its own lines; the last line counts them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))
import sycl  # noqa: E402
from catalog import catalog  # noqa: E402
from programs import Comparison, difference  # noqa: E402
from runtimes import AVIARY, CACHE, ROOT, Place, compile_c, put, vendor_folder  # noqa: E402

sys.path.insert(0, str(ROOT / "tests"))
from harness.process import HANG, api_server, run_nodes  # noqa: E402
from harness.report import Report  # noqa: E402

HERE = Path(__file__).resolve().parent
SPECIFICATION = HERE.parent / "opencl.lapis"
report = Report()


def verdict(name, good, why=""):
    report.check(good, name, why)


# ---- coverage: every function of the header has a line, and the core is virtualized ------------


def header_functions(name):
    text = re.sub(r"/\*.*?\*/", "", Path("/usr/include/CL", name).read_text(), flags=re.S)
    text = "\n".join(l for l in text.splitlines() if not l.lstrip().startswith("#"))
    declarations = re.findall(r"extern\s+CL_API_ENTRY\s(.*?);", text, flags=re.S)
    return {re.search(r"\b(cl[A-Z]\w*)\s*\(", d).group(1) for d in declarations}


def coverage(_work):
    done = subprocess.run([AVIARY, "spec", "coverage", SPECIFICATION], capture_output=True, text=True)
    lines = dict(re.findall(r"^(cl\w+)\s+(\w+.*)$", done.stdout, flags=re.M))
    verdict("coverage runs", done.returncode == 0, done.stderr)
    for header in ("cl.h", "cl_ext.h"):
        missing = header_functions(header) - set(lines)
        verdict(f"coverage lists every function of {header}", not missing, sorted(missing))
    gaps = {f for f in header_functions("cl.h") if "unsupported" in lines.get(f, "")}
    verdict("coverage: all of cl.h is virtualized", not gaps, sorted(gaps))


    described = "".join(path.read_text() for path in sorted(SPECIFICATION.parent.glob("*.lapis")))
    bodies = re.findall(r"^[\w ]+\**(clEnqueue\w+)\((cl_command_queue [^{]*)\{(.*?)^\}", described, flags=re.S | re.M)
    silent = [name for name, _, body in bodies if not re.search(r"opencl_enqueues\(|unsupported\(|^\s*local\(", body)]
    # guest/host_memory.c takes a queue for idle when nobody has said otherwise.
    verdict("coverage: whatever enqueues a command says so", len(bodies) > 30 and not silent, silent)


# ---- isolation: the vendor's library is in the API server and not in the program ---------------


def maps(pid):
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def parent(pid):
    try:
        return int(re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), flags=re.M).group(1))
    except (OSError, AttributeError):
        return 0


def descendants(root):
    pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    def below(pid):
        while pid > 1:
            if pid == root:
                return True
            pid = parent(pid)
        return False
    return [p for p in pids if p != root and below(p)]


def isolation(work):
    if vendor_folder("pocl") is None:
        return verdict("isolation", False, "PoCL is not installed")
    binary = compile_c(HERE / "holding.c", CACHE / "opencl-programs")
    process = Place("pocl", True, work).start([binary])
    try:
        line = process.stdout.readline()
        ready = re.match(r"ready (\d+)", line)
        if not ready:
            return verdict("isolation", False, line + process.stderr.read())
        program = int(ready.group(1))
        others = [p for node in run_nodes(process.pid) for p in descendants(node)]
        verdict("isolation: no PoCL in the program", "libpocl" not in maps(program), "libpocl is mapped")
        verdict("isolation: the guest library is in the program", "/opencl/lib" in maps(program), maps(program))
        servers = [p for p in others if "libpocl" in maps(p)]
        verdict("isolation: PoCL is in the API server", bool(servers), f"looked at {others}")
    finally:
        process.terminate()
        process.communicate()
    deadline = time.monotonic() + HANG
    while any(Path(f"/proc/{p}").exists() for p in servers) and time.monotonic() < deadline:
        time.sleep(0.1)
    verdict("isolation: the API server ends with the program", not any(Path(f"/proc/{p}").exists() for p in servers), servers)


# ---- copies: mapping copies nothing ------------------------------------------------------------


def counters_of(pid):
    done = subprocess.run([AVIARY, "ps", "--json"], capture_output=True, text=True)
    nodes = json.loads(done.stdout or "[]")
    return [s["counters"] for node in nodes for s in node["sessions"] if s["guest"] == pid]


def copies(work):
    if vendor_folder("pocl") is None:
        return verdict("copies", False, "PoCL is not installed")
    process = Place("pocl", True, work).start([compile_c(HERE / "mapped.c", CACHE / "opencl-programs")])
    try:
        line = process.stdout.readline()
        counters = counters_of(int(line.split()[-1])) if line.startswith("ready") else []
        good = len(counters) == 1 and counters[0]["calls"] >= 200 and counters[0]["bytes_copied"] == 0
        verdict("copies: 200 mappings of 64 MiB copy 0 bytes", good, f"{line} {counters}")
    finally:
        process.terminate()
        process.communicate()


def heap(work):
    """With --share-heap the application's memory is seen where it is; without it, it goes through the arena."""
    binary = compile_c(HERE / "heap.c", CACHE / "opencl-programs")
    for options, least, most in ((("--share-heap",), 0, 1 << 20), ((), 32 << 20, 1 << 40)):
        process = Place("pocl", True, work, options).start([binary])
        try:
            line = process.stdout.readline()
            ready = re.match(r"ready (\d+) (-?\d+)", line)
            arena = int(ready.group(2)) if ready else -1
            counters = counters_of(int(ready.group(1))) if ready else []
            copied = counters[0]["bytes_copied"] if len(counters) == 1 else -1
            what = f"heap: 64 MiB written and read four times{' with --share-heap' if options else ''}"
            verdict(f"{what}: {arena} bytes through the arena, {copied} copied by the server", least <= arena <= most and copied == 0, f"{line} {counters}")
        finally:
            process.terminate()
            process.communicate()
    others = ("clinfo", "clpeak-latency", "ffmpeg-avgblur", "pyopencl-wrapper", "clblast-xaxpy")
    compare(work, "pocl", lambda p: p.kind == "own" or p.name in others, option=["--share-heap"])


# ---- limits -------------------------------------------------------------------------------------


def limits(work):
    binary = compile_c(HERE / "quota.c", CACHE / "opencl-programs")
    done = Place("pocl", True, work, ("--limit", "device_memory=1048576")).run([binary, "1048576"], limit=60)
    verdict("limits: device memory is exact", done.status == 0, done.output + done.errors)


def devices(work):
    """Of all devices a program sees its tenant's, and works on them; without any, none."""
    folders = [vendor_folder(runtime) for runtime in ("pocl", "intel")]
    if None in folders:
        return report.skip("devices", "PoCL and Intel's runtime are not both installed")
    together = CACHE / "icd-pocl-intel"
    together.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        for file in folder.glob("*.icd"):
            put(together / file.name, file.read_text())
    binary = compile_c(HERE / "listed.c", CACHE / "opencl-programs")

    def listed(remote, *options):
        # The loader would put platforms without devices last.
        place = Place("pocl", remote, work, options)
        done = place.run([binary], limit=120, OCL_ICD_VENDORS=together, OCL_ICD_PLATFORM_SORT="none")
        return done.output if done.status == 0 else done.output + done.errors

    native = listed(False)
    names = sorted(set(re.findall(r"^ found: (.*)$", native, flags=re.M)))
    verdict("devices: of two platforms, with different names", len(names) == 2 and "FAIL" not in native, native)
    verdict("devices: all without a list", listed(True) == native, listed(True))
    found = r"[1-9]\d*, status 0, a context: status 0\n(?:  ?\S.*\n)*"
    for name in names:
        # Where it was found nothing else was; elsewhere nothing is.
        parts = re.split(r"^(?=\w)", native, flags=re.M)
        expected = "".join(part if f": {name}\n" in part else re.sub(found, "0, status -1, a context: status -1\n", part) for part in parts)
        told = listed(True, "--only-device", name)
        verdict(f"devices: {name} only", told == expected and told != native, told)
    told = listed(True, "--only-device", "another")
    verdict("devices: none", "found" not in told and told.count("0, status -1, a context: status -1\n") == 8, told)


# ---- sharing ------------------------------------------------------------------------------------


@contextlib.contextmanager
def scheduled(work, *settings, processor=None, **environment):
    """A node that shares its devices by those settings, and its address."""
    socket, config = work / "scheduled.sock", work / "scheduled.toml"
    config.write_text("\n".join([f'listen = "unix:{socket}"', '[devices."*"]', *settings]) + "\n")
    command = [*on(processor), AVIARY, "serve", "--config", config]
    # Shown when something fails.
    with open(work / "scheduled.log", "w", encoding="utf-8") as log:
        node = subprocess.Popen(command, env={**Place("pocl", True, work).environment(), **environment}, stderr=log)
    try:
        deadline = time.monotonic() + HANG
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield node, f"unix:{socket}"
    finally:
        node.terminate()
        node.wait()


def on(processor):
    """What a command begins with that has only that processor."""
    return [] if processor is None else ["taskset", "-c", str(processor)]


def sharing(work):
    """Two programs that use a device and a part of it under a scheduler: neither waits for ever, and the part is no device of its own."""
    binary = compile_c(HERE / "partition.c", CACHE / "opencl-programs")
    # On a busy machine PoCL has been seen to keep a device for more than the usual limit of 10 s.
    with scheduled(work, 'scheduler = "fair"', f'hold_limit = "{HANG:.0f}s"') as (node, address):
        place = Place("pocl", True, work, ("--server", address))
        programs = [place.start([binary, 600]) for _ in range(2)]
        devices, told = [], []
        for program in programs:
            try:
                told += program.communicate(timeout=2 * HANG)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, 9)
                told += program.communicate()
            report = subprocess.run([AVIARY, "ps", "--json", "--server", address], capture_output=True, text=True)
            devices = devices or json.loads(report.stdout or "[{}]")[0].get("devices", [])
        verdict("sharing: a device and a part of it, twice, under a scheduler", [p.returncode for p in programs] == [0, 0], f"{told}\n{(work / 'scheduled.log').read_text()}")
        verdict("sharing: a part is scheduled as its device", len(devices) == 1, devices)


def waiting_for_each_other(work):
    """Two processes of one user, the only tenant, of which one blocks until the other's kernel has run: both end, and no session is ended."""
    binary = compile_c(HERE / "waits.c", CACHE / "opencl-programs")
    # With the usual limit: it would be over long before the program's time.
    with scheduled(work, 'scheduler = "fair"', f'hold_limit = "{HANG / 2:.0f}s"') as (_, address):
        program = Place("pocl", True, work, ("--server", address)).start([binary, 3])
        try:
            told = program.communicate(timeout=2 * HANG)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, 9)
            told = program.communicate()
        log = (work / "scheduled.log").read_text()
        verdict("sharing: two processes of a tenant wait for each other", program.returncode == 0 and "hold_limit" not in log, f"{told}\n{log}")


def pending(work):
    """Callbacks that are to come when the API server ends are called once each, in the order in which they were registered."""
    binary = compile_c(HERE / "pending.c", CACHE / "opencl-programs")
    wanted = ["first: event 1, status -2", "second: memory 1", "third: event 1, status -2"]
    wanted += ['clSetEventCallback(event, CL_COMPLETE, completed, "late"): -2', "calls: 3"]
    with scheduled(work) as (_, address):
        place = Place("pocl", True, work, ("--server", address))
        command = place.command([binary])
        with subprocess.Popen(command, env=place.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            held = program.stdout.readline()
            report = subprocess.run([AVIARY, "ps", "--json", "--server", address], capture_output=True, text=True)
            os.kill(api_server(json.loads(report.stdout)[0]["sessions"][0]["server"]), signal.SIGKILL)
            try:
                told, _ = program.communicate("\n", timeout=HANG)
            except subprocess.TimeoutExpired:
                program.kill()
                told = ""
        verdict("pending: callbacks of a session whose API server ends", told.splitlines() == wanted, held + told)


# Launches, and how often they are counted at most, until a count is as small as asked for: the machine may be busy with
# something else in most of them.
LAUNCHES, TRIES = 400, 20


def sleeps(pid):
    """How often each thread of a process has gone to sleep."""
    found = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found[path.name] = int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (path / "status").read_text(), re.M)[1])
    return found


def sleeps_per_launch(work, wait, time_awake, tries, enough=0.0):
    """Of the API server's thread that serves a program, which launches a kernel and waits for it; one processor for both, another for
    the device. The smallest of several counts, at most `tries`, which end with one below `enough`."""
    binary = compile_c(HERE / "awake.c", CACHE / "opencl-programs")
    one_thread = {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_AFFINITY": "1"}
    with scheduled(work, 'scheduler = "fair"', f'awake = "{time_awake}"', processor=1, **one_thread) as (_, address):
        place = Place("pocl", True, work, ("--server", address))
        command = [*on(1), *place.command([binary, LAUNCHES, wait])]
        with subprocess.Popen(command, env=place.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:

            def goes_on():
                program.stdin.write("\n")
                program.stdin.flush()
                return program.stdout.readline() == "done\n"

            counts = []
            if goes_on():
                report = subprocess.run([AVIARY, "ps", "--json", "--server", address], capture_output=True, text=True)
                server = json.loads(report.stdout)[0]["sessions"][0]["server"]
                while len(counts) < tries and not (counts and counts[-1] < enough):
                    before = sleeps(server)
                    goes_on()
                    after = sleeps(server)
                    # The device's thread has another processor.
                    ours = [t for t in after if os.sched_getaffinity(int(t)) == {1}]
                    counts.append(max(after[t] - before.get(t, 0) for t in ours) / LAUNCHES)
            program.stdin.close()
        return min(counts, default=None)


def awake(work):
    """A thread that has the device, calls often and may be kept awake for it does not sleep while the device works: half as many
    sleeps. Needs a quiet machine, so it runs only when it is asked for."""
    if not os.sched_getaffinity(0) >= {0, 1}:
        return report.skip("awake", "needs the first two CPUs")
    for wait in ("queue", "event"):
        asleep = sleeps_per_launch(work, wait, "0us", 3)
        watching = asleep and sleeps_per_launch(work, wait, "3ms", TRIES, 0.75 * asleep)
        few = bool(asleep) and watching is not None and watching < 0.75 * asleep
        verdict(f"sharing: a thread that waits for a device stays awake ({wait})", few, f"sleeps in a launch: {asleep}, {watching}")


# ---- programs -----------------------------------------------------------------------------------


def compare(work, runtime, choose, two=False, option=(), title=""):
    if vendor_folder(runtime) is None:
        report.skip(title or runtime, f"the {runtime} runtime is not installed")
        return
    arguments = SimpleNamespace(runtime=runtime, native=False, two=two, option=list(option))
    comparison = Comparison(arguments, work)
    for program in catalog():
        if runtime in program.runtimes and choose(program):
            comparison.compare(program)
            result = comparison.results[-1]
            what = f"{program.name} on {runtime}{' twice' if two else ''}{''.join(' ' + o for o in option)} {title}".strip()
            verdict(what, result["equal"], "differs from the native run, see above")


# ---- graphs: random commands behind events, in and out of order ---------------------------------

# Graphs of each run.
GRAPHS = 300


def graphs(work):
    """Random graphs end, and end as natively: plain, without shared memory, in parts, and on a scheduled device."""
    binary = compile_c(HERE / "graphs.c", CACHE / "opencl-programs")

    def run(place, *arguments, **environment):
        return place.run([binary, 1, GRAPHS, *arguments], limit=HANG, **environment)

    def equal(what, done, native):
        verdict(f"graphs: {GRAPHS} {what}", (done.status, done.output) == (0, native.output), difference(lines(native), lines(done)))

    def lines(done):
        return (done.status, done.output, done.errors[-2000:])

    # On PoCL only: Intel's runtime refuses questions about an event from inside its callback.
    native = run(Place("pocl", False, work), "svm")
    good = native.status == 0 and native.output.count("strange 0 0, unseen 0, out of order 0") == GRAPHS
    verdict(f"graphs: {GRAPHS} natively on pocl", good, native.output[-2000:] + native.errors[-2000:])
    equal("on pocl", run(Place("pocl", True, work), "svm"), native)
    equal("with slicing", run(Place("pocl", True, work), "svm", AVIARY_SLICE_GROUPS=7), native)
    with scheduled(work, 'scheduler = "fair"', f'hold_limit = "{HANG:.0f}s"') as (_, address):
        equal("on a scheduled device", run(Place("pocl", True, work, ("--server", address)), "svm"), native)
    native = run(Place("pocl", False, work))
    equal("with --mirror", run(Place("pocl", True, work, ("--mirror",))), native)


# Graphs of the long run, and of one process of it.
MANY_GRAPHS, GRAPHS_AT_ONCE = 10_000, 500


def many_graphs(work):
    """Of very many random graphs each ends, and ends as natively."""
    binary = compile_c(HERE / "graphs.c", CACHE / "opencl-programs")
    for first in range(1, MANY_GRAPHS, GRAPHS_AT_ONCE):
        native, remote = (Place("pocl", remote, work).run([binary, first, GRAPHS_AT_ONCE, "svm"], limit=4 * HANG) for remote in (False, True))
        what = f"graphs {first} to {first + GRAPHS_AT_ONCE - 1}"
        good = native.status == 0 and native.output.count("strange 0 0, unseen 0, out of order 0") == GRAPHS_AT_ONCE
        verdict(f"{what} natively", good, native.output[-2000:] + native.errors[-2000:])
        seen, expected = ((done.status, done.output, done.errors[-2000:]) for done in (remote, native))
        verdict(f"{what} as natively", seen[:2] == expected[:2], difference(expected, seen))


# ---- failing: commands behind user events that fail ----------------------------------------------

# Rounds of each run, and of the one with two programs.
ROUNDS = 60
SCHEDULERS = ("fair", "round-robin", "slices", "priority", "wfq-poll", "wfq-aimd", "credit", "strict-coscheduling")
SETTINGS = {name: [f'scheduler = "{name}"'] for name in SCHEDULERS}
SETTINGS |= {"ebpf": ['scheduler = "ebpf"', f'policy = "{ROOT / "policies" / "figure7.c"}"']}
SETTINGS |= {"fair in slices of 200 us": ['scheduler = "fair"', 'slice = "200us"']}


def failing(work):
    """What becomes of commands behind user events that fail is the same as natively, under every scheduler, and the API server lives."""
    binary = compile_c(HERE / "failing.c", CACHE / "opencl-programs")
    ends = compile_c(HERE / "programs" / "ends.c", CACHE / "opencl-programs")
    natives = {}

    def native(first):
        if first not in natives:
            natives[first] = Place("pocl", False, work).run([binary, first, ROUNDS], limit=HANG)
        return natives[first]

    def equal(what, first, *options, **environment):
        done, expected = Place("pocl", True, work, options).run([binary, first, ROUNDS], limit=HANG, **environment), native(first)
        seen, wanted = ((d.status, d.output, d.errors[-2000:]) for d in (done, expected))
        verdict(f"failing: {ROUNDS} rounds {what}", (done.status, done.output) == (0, expected.output), difference(wanted, seen))

    good = native(1).status == 0 and native(1).output.count("strange 0, cells wrong 0") == ROUNDS
    verdict(f"failing: {ROUNDS} rounds natively", good, native(1).output[-2000:] + native(1).errors[-2000:])
    equal("plain", 1)
    equal("with --mirror", 1, "--mirror")
    equal("in parts", 1, AVIARY_SLICE_GROUPS=1)
    for number, (name, settings) in enumerate(SETTINGS.items()):
        with scheduled(work, *settings, f'hold_limit = "{HANG:.0f}s"') as (_, address):
            # Each scheduler other rounds: they are told apart by nothing but times.
            equal(f"under {name}", 1 + number * ROUNDS, "--server", address)
            if name == "fair":
                place = Place("pocl", True, work, ("--server", address, "--mirror"))
                programs = [place.start([binary, 1, ROUNDS]) for _ in range(2)]
                told = [program.communicate(timeout=4 * HANG)[0] for program in programs]
                verdict("failing: two programs at once under fair", told == 2 * [native(1).output], told)
                done = Place("pocl", True, work, ("--server", address)).run([ends, "hastily"], limit=HANG)
                verdict("failing: parts of devices end in haste", (done.status, done.output.count("value 60")) == (0, 60), done.errors)


# ---- slicing: launches in parts ------------------------------------------------------------------

SLICED = {"places", "plain", "saxpy", "reduce", "sum", "required", "negative"}
WHOLE = {"waiting", "watching", "made_here", "pasting"}


def rules(_work):
    """What the lexer says of small programs, under sanitizers."""
    binary = CACHE / "opencl-programs" / "rules"
    binary.parent.mkdir(parents=True, exist_ok=True)
    sources = [HERE.parent / "server" / "slicing" / name for name in ("lexer.c", "rewrite.c")]
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, "-o", binary, HERE / "rules.c", *sources], check=True)
    done = subprocess.run([binary], capture_output=True, text=True, timeout=600)
    verdict("rules: which kernels may be sliced", done.returncode == 0, done.stdout + done.stderr)


def sliced_kernels(work, runtime):
    """Which kernels of programs/slicing.c ran in parts: all that may, none else."""
    program = compile_c(HERE / "programs" / "slicing.c", CACHE / "opencl-programs")
    done = Place(runtime, True, work).run([program], limit=120, AVIARY_SLICE_GROUPS=3, AVIARY_SLICE_LOG=1)
    found = re.findall(r"sliced (\w+): (\d+) work-groups, (\d+) sub-launches.* status (-?\d+)", done.errors)
    refused = set(re.findall(r"kernel (\w+) is not sliced", done.errors))
    verdict(f"slicing: kernels in parts on {runtime}", {name for name, *_ in found} == SLICED, done.errors[-2000:])
    verdict(f"slicing: kernels left whole on {runtime}", refused == WHOLE, refused)
    # In one dimension three work-groups a part are known in advance.
    counts = {int(parts) for name, groups, parts, _ in found if name == "saxpy" and groups == "512"}
    # One launch of the program waits for what fails: nothing of it may run.
    failed_parts = {(name, parts) for name, _, parts, status in found if status != "0"}
    good = counts == {171} and failed_parts <= {("sum", "1")}
    verdict(f"slicing: number of parts on {runtime}", good, found)


def doubts(work):
    """A wrong prediction is noticed: the third launch goes whole and takes long, the fourth one goes in parts."""
    done = Place("pocl", True, work).run(
        [compile_c(HERE / "doubt.c", CACHE / "opencl-programs")], limit=120, AVIARY_SLICE_MS=1, AVIARY_SLICE_LOG=1)
    parts = [int(n) for n in re.findall(r"(\d+) sub-launches", done.errors)]
    good = done.status == 0 and 2 <= len(parts) <= 3 and parts[-1] > 10
    verdict("slicing: a wrong prediction is not made again", good, f"{parts} {done.errors}")


def placed(work):
    """The server's side of included files refuses lists that no honest guest sends, and leaves nothing of them."""
    tests, built = HERE, ROOT / "target" / "aviary" / "opencl" / "gen" / "include"
    folders = (built, ROOT / "crates" / "lapis" / "include", tests.parent / "server", tests.parent)
    program = work / "placed"
    subprocess.run(["gcc", "-O1", "-g", "-Wall", "-Wextra", "-Wno-format-truncation", "-D_GNU_SOURCE", "-DAVIARY_SERVER",
                    *[f"-I{folder}" for folder in folders], "-o", program, tests / "placed.c", "-lpthread"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=600)
    verdict("included files: lists of a hostile guest", done.returncode == 0, done.stdout + done.stderr)


def slicing(work):
    rules(work)
    doubts(work)
    settings = ({"AVIARY_SLICE_GROUPS": "1"}, {"AVIARY_SLICE_GROUPS": "7"}, {"AVIARY_SLICE_MS": "1"})
    for runtime in ("pocl", "intel"):
        if vendor_folder(runtime) is None:
            continue
        sliced_kernels(work, runtime)
        for setting in settings:
            os.environ.update(setting)
            try:
                several = runtime == "pocl" and "AVIARY_SLICE_MS" in setting
                title = " ".join(f"{name}={value}" for name, value in setting.items())
                compare(work, runtime, lambda p: p.name in SLICED_TOO if several else p.name == "slicing", title=title)
            finally:
                for name in setting:
                    del os.environ[name]


# Programs that run with slicing on, too: those of our own, and some that nobody here wrote.
OTHERS_SLICED = ("ffmpeg-avgblur", "ffmpeg-convolution", "clblast-xaxpy", "clblast-xger", "hashcat-md5", "pyopencl-wrapper")
SLICED_TOO = {p.name for p in catalog() if p.kind == "own"} | set(OTHERS_SLICED)

INTEL_SMOKE = ("clinfo", "ffmpeg-avgblur", "clblast-xaxpy", "pyopencl-wrapper")

# Zero-copy memory, and with it SVM, does not exist without shared memory; a program that closes all its descriptors loses its
# session there.
NOT_MIRRORED = ("svm", "svm_commands", "usm", "closing")

CHECKS = {
    "coverage": coverage,
    "isolation": isolation,
    "copies": copies,
    "heap": heap,
    "limits": limits,
    "devices": devices,
    "sharing": sharing,
    "waits": waiting_for_each_other,
    "pending": pending,
    "awake": awake,
    "graphs": graphs,
    "many-graphs": many_graphs,
    "failing": failing,
    "placed": placed,
    "pocl": lambda work: compare(work, "pocl", lambda p: p.quick),
    "two": lambda work: compare(work, "pocl", lambda p: p.kind == "own" or p.name in ("hashcat-md5", "ffmpeg-avgblur"), two=True),
    "mirror": lambda work: compare(work, "pocl", lambda p: p.kind == "own" and p.name not in NOT_MIRRORED, option=["--mirror"]),
    "slicing": slicing,
    "sycl": lambda work: sycl.check(work, report),
    "intel": lambda work: compare(work, "intel", lambda p: p.kind == "own" or p.name in INTEL_SMOKE),
}


# Checks of what depends on how busy the machine is, or takes long: only by name.
ON_REQUEST = ("awake", "many-graphs")


def main():
    names = sys.argv[1:] or [name for name in CHECKS if name not in ON_REQUEST]
    unknown = [n for n in names if n not in CHECKS]
    if unknown:
        sys.exit(f"unknown check {unknown[0]}: {' '.join(CHECKS)}")
    if not os.access(AVIARY, os.X_OK):
        sys.exit(f"{AVIARY} is missing: run ./x setup")
    with tempfile.TemporaryDirectory(prefix="aviary-opencl-") as folder:
        for name in names:
            CHECKS[name](Path(folder))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
