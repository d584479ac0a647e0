"""What a synchronous call over TLS on loopback costs: its time beside a TCP ping-pong of the same run, and kernel calls and
wake-ups of each process. Needs neither namespaces nor a second machine."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import measure
from harness.process import AVIARY, HANG, ROOT, Failure, descendants, run, run_nodes, wait_until

# What is counted, and the kernel's events for it.
EVENTS = {
    "wakeups": ("sched:sched_wakeup",),
    "switches": ("context-switches",),
    "futex": ("syscalls:sys_enter_futex",),
    "ppoll": ("syscalls:sys_enter_ppoll", "syscalls:sys_enter_poll"),
    "send": ("syscalls:sys_enter_sendto", "syscalls:sys_enter_write"),
    "recv": ("syscalls:sys_enter_recvfrom", "syscalls:sys_enter_read"),
}
# Of these the relay's and the gateway's count, of wake-ups those of all processes.
OF_CARRIERS = ("futex", "ppoll", "send", "recv")
ROUNDS, CALLS, CALLS_QUICK = 5, 10000, 2000
FIGURES = {
    "netcalls.sync_us": "synchronous no-op over TLS on loopback",
    "netcalls.tcp_us": "100 bytes over TCP on loopback and back, two bare processes, in turn with it",
    "netcalls.sync_ratio": "... the call against it (target <= 3)",
    "netcalls.wakeups": "wake-ups that guest, relay, gateway and API server make per call (target <= 6)",
    "netcalls.futex": "futex calls of relay and gateway per call (target <= 6)",
    "netcalls.ppoll": "... ppoll (target <= 1)",
    "netcalls.send": "... send and write (target 2)",
    "netcalls.recv": "... recv and read (target 2)",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Session:
    """A program with a session on a node of its own."""

    def __init__(self, stack, name, arguments, serve, options):
        _, environment = measure.test_library()
        flags = ["-I", ROOT / "apis/testapi/include", "-L", measure.BUILD / "testapi", "-ltestapi"]
        program = measure.compile_c(name, *flags)
        address, environment = f"127.0.0.1:{free_port()}", {**os.environ, **environment}
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        self.node = stack.enter_context(ended(subprocess.Popen(
            [AVIARY, "serve", "--sandbox", "off", "--listen", address, *serve], env=environment, stderr=log)))
        wait_until(HANG, "the node listens", lambda: listens(self.node, address, log))
        self.guest = stack.enter_context(ended(subprocess.Popen(
            measure.remoted([program, *map(str, arguments)], "--api", "testapi", "--server", address, *options),
            env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)))
        if self.guest.stdout.readline() != "ready\n":
            raise Failure("the program has no session")
        self.program = str(program)

    def ask(self, line=""):
        """The median of what it does for this line, in us."""
        self.guest.stdin.write(f"{line}\n")
        self.guest.stdin.flush()
        return float(self.guest.stdout.readline() or "nan")

    def processes(self):
        """Process ids by what they are."""
        of_node = descendants(self.node.pid)
        gateways = [pid for pid in of_node if "gateway" in words(pid)[1:3]]
        mine = [self.guest.pid, *descendants(self.guest.pid)]
        guests = [pid for pid in mine if words(pid)[:1] == [self.program]]
        relays = [pid for pid in {*mine, *run_nodes(self.guest.pid)} if pid not in guests]
        servers = [pid for pid in of_node if pid not in gateways]
        return {"guest": guests, "relay": relays, "gateway": gateways, "API server": servers}


def words(pid):
    with contextlib.suppress(OSError):
        return [word.decode(errors="replace") for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return []


def listens(node, address, log):
    if node.poll() is not None:
        log.seek(0)
        raise Failure(f"the node ended: {log.read()[-500:]}")
    host, port = address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


@contextlib.contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def counted(session, pids, count):
    """Events of these processes per call, from perf, which counts between two orders."""
    order, orders = os.pipe()
    heard, done = os.pipe()
    events = [event for names in EVENTS.values() for event in names]
    command = ["perf", "stat", "-x", ";", "-e", ",".join(events), "-D", "-1", "--control", f"fd:{order},{done}", "-p", ",".join(map(str, pids))]
    perf = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, pass_fds=(order, done))
    os.close(done)
    os.close(order)
    try:
        for word in (b"enable\n", b"disable\n"):
            if word == b"disable\n":
                session.ask()
            os.write(orders, word)
            if not os.read(heard, 16):
                raise Failure(f"perf counts nothing: {perf.communicate()[1][-300:]}")
    finally:
        os.close(orders)
        os.close(heard)
        if perf.poll() is None:
            perf.send_signal(2)
    counts = {}
    for line in perf.communicate()[1].splitlines():
        value, _, event, *_ = [*line.split(";"), "", "", ""]
        if event in events and value.isdigit():
            counts[event] = int(value) / count
    return {name: sum(counts.get(event, 0.0) for event in names) for name, names in EVENTS.items()}


def breakdown(session, count):
    """Prints what each process does per call; returns the figures of all."""
    if not shutil.which("perf"):
        print("netcalls: kernel calls are not counted: perf is missing", file=sys.stderr)
        return {}
    by_process = {name: counted(session, pids, count) for name, pids in session.processes().items() if pids}
    print(f"per call    {' '.join(f'{name:>9}' for name in EVENTS)}")
    for name, counts in by_process.items():
        print(f"{name:11} {' '.join(f'{counts[what]:9.2f}' for what in EVENTS)}")
    carriers = [by_process[name] for name in ("relay", "gateway") if name in by_process]
    figures = {f"netcalls.{what}": sum(counts[what] for counts in carriers) for what in OF_CARRIERS}
    return figures | {"netcalls.wakeups": sum(counts["wakeups"] for counts in by_process.values())}


def netcalls(quick):
    count = CALLS_QUICK if quick else CALLS
    tcp = measure.compile_c("tcp")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run([AVIARY, "tls", "init", folder, "--tenant", "bench"])
        session = Session(stack, "netcalls", [count], ["--tls-dir", f"{folder}/node"], ["--tls-dir", f"{folder}/tenant-bench"])
        # They take turns, so that a change of the machine's mood meets both.
        turns = [
            {"sync_us": session.ask(), "tcp_us": measure.measured([tcp, str(count)])["tcp_us"]} for _ in range(ROUNDS)
        ]
        medians = {f"netcalls.{name}": value for name, value in measure.medians(turns).items()}
        ratio = {"netcalls.sync_ratio": medians["netcalls.sync_us"] / medians["netcalls.tcp_us"]}
        return medians | ratio | breakdown(session, count)
