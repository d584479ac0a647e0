"""Tenants that share the synthetic accelerator under a scheduler, and what the device's own log says of it."""

import contextlib
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.process import APIS, AVIARY, HANG, ROOT, Failure, run

# Tenants are users: these are nobody's on any machine that we know.
FIRST_USER = 60001
HEADER = 24
# Begin and end in nanoseconds, who it was for, which process.
RECORD = struct.Struct("<QQII")
RECORDS = 1 << 20
# How long after everybody has attached the measured time begins, in seconds.
WARM_UP = 1.0


@dataclass(frozen=True)
class Load:
    """What a tenant does: `batch` submissions of `kernel_us`, a wait for all of them, a pause."""

    kernel_us: object  # a number, or (shortest, longest)
    batch: int = 1
    pause_us: int = 0

    def nanoseconds(self):
        if isinstance(self.kernel_us, tuple):
            return "-".join(str(int(us * 1000)) for us in self.kernel_us)
        return str(int(self.kernel_us * 1000))


@dataclass(frozen=True)
class Nuisance:
    """What a hostile tenant does until it is killed: a kind of apis/testapi/tests/nuisance.c."""

    kind: str


@dataclass(frozen=True)
class Tenant:
    weight: int
    load: object  # a Load or a Nuisance
    priority: int = 0
    cpu: int = -1


@dataclass
class Outcome:
    """What the device did between `begin` and `end` (nanoseconds), by tenant."""

    records: list  # (begin, end, tenant), cut off at the measured time
    begin: int
    end: int
    tenants: list
    total: list  # nanoseconds by tenant, before and after the measured time too; None: the device does not remember all
    # The device time that each tenant had used by then, in nanoseconds, by the beginning of a window. Where the records do not say
    # when the work was done, but that it was.
    used: dict = field(default_factory=dict)

    def busy(self, tenant=None, begin=None, end=None):
        """Nanoseconds for which the device worked, for one tenant or all, between two times."""
        begin, end = begin or self.begin, end or self.end
        return sum(
            max(0, min(e, end) - max(b, begin)) for b, e, t in self.records if tenant is None or t == tenant
        )

    def utilization(self):
        return self.busy() / (self.end - self.begin)

    def unfairness(self, window_s):
        """|t1 - t2| / (t1 + t2) in every window (AvA 6.5)."""
        window = int(window_s * 1e9)
        found = []
        for begin in range(self.begin, self.end - window + 1, window):
            if self.used:
                one, two = (after - before for before, after in zip(self.used[begin], self.used[begin + window], strict=True))
            else:
                one, two = (self.busy(i, begin, begin + window) for i in range(2))
            found.append(abs(one - two) / (one + two))
        return found


def require_root():
    if os.geteuid() != 0:
        raise Failure("tenants are users of their own here: only root can start processes as other users")


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
    if process.poll() is None:
        process.kill()
        process.wait()


def end_all(guest):
    """A guest and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(guest.pid, signal.SIGKILL)
    guest.wait()


class Node:
    """Where guests run: with a node, or natively."""

    def __init__(self, stage, address, accelerator, variables):
        self.stage, self.address, self.accelerator, self.variables = stage, address, accelerator, variables
        self.guests = []

    def guest(self, number, load, begin, end_at, cpu=-1):
        """Starts the program of a tenant, as that tenant's user."""
        user = ["setpriv", f"--reuid={FIRST_USER + number}", f"--regid={FIRST_USER + number}", "--clear-groups"]
        where = ["taskset", "-c", str(cpu)] if cpu >= 0 else []
        what = self.stage.program(number, load, begin, end_at, self.accelerator)
        command = [str(word) for word in [*user, *where, *what]]
        # As different users' programs are: with sessions of their own, among which Linux shares the processors.
        environment = {**os.environ, **self.variables}
        # A hostile one is refused all the time.
        errors = subprocess.DEVNULL if isinstance(load, Nuisance) else None
        guest = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        self.guests.append(guest)
        return guest


class Stage:
    """A folder with the accelerator, and the programs."""

    # The device is not this machine's processors: its users may stay awake for it.
    settings = ('awake = "300us"',)
    guest_library = "testapi/libtestapi.so.1"
    # How long a tenant takes to attach, in seconds.
    start_up = 0.5
    # How many seconds a load gets with others at a time, natively in between; more than one turn where the device's speed changes.
    turns = (20,)

    def __enter__(self):
        require_root()
        self.folder = Path(tempfile.mkdtemp(prefix="aviary-tenants."))
        self.folder.chmod(0o755)
        # Other users cannot look into the project's folder.
        self.programs = self.folder / "bin"
        self.guest = self.folder / "guest"
        self.guest.mkdir()
        shutil.copy(APIS / self.guest_library, self.guest)
        self.runs = 0
        self._log_file = self.folder / "node.log"
        self.prepare()
        return self

    def prepare(self):
        """Puts what tenants run into `programs`."""
        run(["sh", ROOT / "apis/testapi/build", self.programs])

    def program(self, number, load, begin, end_at, _device):
        if isinstance(load, Nuisance):
            return [self.programs / "nuisance", load.kind, number]
        return [self.programs / "accelerate", number, load.nanoseconds(), load.batch, load.pause_us, begin, end_at]

    def vendor_variables(self, device):
        """The environment of who uses the device itself: an API server, or a program without Aviary."""
        return {"LD_LIBRARY_PATH": str(self.programs), "TESTAPI_ACCELERATOR": str(device)}

    def native_variables(self, device):
        return self.vendor_variables(device)

    def guest_variables(self):
        return {"LD_LIBRARY_PATH": str(self.guest)}

    def beside_the_device(self):
        """What a command begins with that is not to run on the device."""
        return []

    def log(self):
        """What the last node said."""
        return self._log_file.read_text(encoding="utf-8")

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def believed(self, load, seconds):
        """Nanoseconds of device time that the node charged a tenant for, and that the device's log shows."""
        reports = []

        def ask(node):
            command = [AVIARY, "ps", "--json", "--server", node.address]
            report = json.loads(run(command))[0]
            tenants = [t for device in report["devices"] for t in device["tenants"] if t["tenant"] == "t0"]
            reports.append(sum(t["used_ns"] for t in tenants))

        tenants = [Tenant(1, load), Tenant(1, Load(100, pause_us=50_000))]
        outcome = self.run("fair", tenants, seconds, finally_=ask)
        if outcome.total is None:
            raise Failure("more submissions than the accelerator's log keeps")
        return reports[-1], outcome.total[0]

    def observe(self, _node, _tenants, _begin, _end):
        """While the tenants run: what the device's records do not say, for `Outcome.used`."""
        return {}

    def new_device(self):
        """A device of its own for every run, which all tenants may use."""
        self.runs += 1
        accelerator = self.folder / f"accelerator.{self.runs}"
        accelerator.touch()
        accelerator.chmod(0o666)
        return accelerator

    @contextlib.contextmanager
    def node(self, scheduler, tenants, *, slice_ms=6, spares=2, extra=(), top=(), options=()):
        """A node for the tenants, with a device of its own. `scheduler` None: nobody schedules.

        `extra` is about the device, `top` about the node; `options` are for the command line.
        """
        accelerator = self.new_device()
        socket = self.folder / f"node.{self.runs}.sock"
        lines = [f'listen = "unix:{socket}"', 'mode = "666"', f"spares = {spares}", *top]
        for i, tenant in enumerate(tenants):
            lines += [f"[tenants.t{i}]", f"users = [{FIRST_USER + i}]", f"weight = {tenant.weight}"]
            lines += [f"priority = {tenant.priority}"]
        lines += ["[sandbox]", f'devices = ["{accelerator}"]']
        if scheduler:
            lines += ['[devices."*"]', f'scheduler = "{scheduler}"', f'slice = "{slice_ms}ms"', *self.settings, *extra]
        config = self.folder / "node.toml"
        config.write_text("\n".join(lines) + "\n")
        log = self._log_file
        environment = {**os.environ, **self.vendor_variables(accelerator)}
        with open(log, "w", encoding="utf-8") as file:
            command = [*self.beside_the_device(), AVIARY, "serve", "--config", config, "--pass-environment=TESTAPI_*",
                       "--pass-environment=AVIARY_WITHOUT", *options]
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        node = Node(self, f"unix:{socket}", accelerator, {**self.guest_variables(), "AVIARY_SERVER": f"unix:{socket}"})
        try:
            deadline = time.monotonic() + HANG
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Failure(f"the node does not start: {log.read_text()[-2000:]}")
                time.sleep(0.02)
            yield node
        except Failure as failure:
            raise Failure(f"{failure}\n{log.read_text()[-2000:]}") from failure
        finally:
            for guest in node.guests:
                end_all(guest)
            end(process)

    @contextlib.contextmanager
    def natively(self):
        """The same device without Aviary."""
        accelerator = self.new_device()
        node = Node(self, None, accelerator, self.native_variables(accelerator))
        try:
            yield node
        finally:
            for guest in node.guests:
                end_all(guest)

    def run(self, scheduler, tenants, seconds, *, slice_ms=6, native=False, patience=0.0, finally_=None, **node):
        """Lets the tenants loose on one device, and tells what it did. `scheduler` None: nobody schedules.

        `patience`: seconds that they get to attach, beyond the usual.
        """
        place = self.natively() if native else self.node(scheduler, tenants, slice_ms=slice_ms, **node)
        with place as node:
            begin = time.monotonic() + self.start_up + patience + 0.1 * len(tenants)
            last = begin + WARM_UP + seconds + 0.2
            guests = [node.guest(i, tenant.load, begin, last, tenant.cpu) for i, tenant in enumerate(tenants)]
            first = int((begin + WARM_UP) * 1e9)
            used = {} if native else self.observe(node, tenants, first, first + int(seconds * 1e9))
            for guest, tenant in zip(guests, tenants, strict=True):
                if isinstance(tenant.load, Load) and guest.wait(timeout=seconds + 2 * HANG) != 0:
                    raise Failure(f"a tenant ended with status {guest.returncode}")
            if finally_:
                finally_(node)
        last = first + int(seconds * 1e9)
        records, whole = self.records(node.accelerator)
        if not whole and records[0][0] > first:
            raise Failure(f"the accelerator's log keeps {RECORDS} submissions, and there were more in the measured time")
        total = [sum(e - b for b, e, t in records if t == i) for i in range(len(tenants))] if whole else None
        return Outcome([(b, e, t) for b, e, t in records if e > first and b < last], first, last, tenants, total, used)

    def has_begun(self, node):
        """If the node's device has begun to work."""
        return node.accelerator.stat().st_size > 0 and bool(self.records(node.accelerator)[0])

    @staticmethod
    def records(accelerator):
        """What the device did: (begin, end, tenant) in nanoseconds of CLOCK_MONOTONIC, in order; whether that is all.

        A flood that has the device to itself while the others attach is more than the log keeps: its latest part.
        """
        with open(accelerator, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            count = struct.unpack_from("<Q", memory, 8)[0]
            raw = memory[HEADER : HEADER + min(count, RECORDS) * RECORD.size]
        records = [(begin, end, tenant) for begin, end, tenant, _ in RECORD.iter_unpack(raw)]
        oldest = count % RECORDS if count > RECORDS else 0
        return records[oldest:] + records[:oldest], count <= RECORDS


def min_max_ratio(outcomes):
    """The smallest normalized share against the largest (FairGV 5.2), of what the same tenants got in all these runs."""
    tenants = outcomes[0].tenants
    normalized = [sum(outcome.busy(i) for outcome in outcomes) / tenant.weight for i, tenant in enumerate(tenants)]
    return min(normalized) / max(normalized)
