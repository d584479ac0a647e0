"""What CUDA's contexts take of the device for themselves: charged before they are made, given back with them, and the same while the
session moves, is parked, or its memory is out. On the reference driver, whose contexts take as much as the node charges."""

import contextlib
import subprocess
import tempfile
from pathlib import Path

from cuda_cases import built
from harness.node import running
from harness.process import AVIARY, HANG, Wrong, run, wait_until
from operator_cases import migrate, sessions, tenant_used
from parking_cases import nothing_is_left, park
from swap_cases import swap, swap_out

MIB = 1 << 20
# Of one context, of what a program allocates, and of the tenant's limit: room for three contexts.
CONTEXT, ALLOCATED, LIMIT = 64, 32, 200
# What the node adds to what it has measured.
LOADED_LATER = 128
NO_ROOM = "CUDA_ERROR_OUT_OF_MEMORY"
# Threads that retain the primary context at once.
AT_ONCE = 8


class Program:
    """`told`, which does as it is told."""

    def __init__(self, node, folder):
        command = [AVIARY, "run", "--api", "cuda", "--server", node.address, "--", folder / "told"]
        self.node = node
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def does(self, word):
        print(word, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def then(self, word, used, answer="CUDA_SUCCESS"):
        """What it answers, and the MiB of device memory that the tenant uses afterwards."""
        found = (self.does(word), tenant_used(self.node)[0] / MIB)
        if found != (answer, used):
            raise Wrong(f"{word}: {found} instead of {(answer, used)}: {self.node.log.read_text()[-1500:]}")

    def end(self):
        self.process.stdin.close()
        if self.process.wait(timeout=HANG):
            raise Wrong(f"status {self.process.returncode}")


@contextlib.contextmanager
def node_of(tools, keys=f'context = "{CONTEXT}M"', *options, takes=CONTEXT, **variables):
    folder = built(tools)
    environment = {"LD_LIBRARY_PATH": str(folder / "driver"), "REFCUDA_CONTEXT": str(takes * MIB), **variables}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f'[devices."*"]\nscheduler = "none"\n{keys}\n')
        config.flush()
        with running(environment, "--config", config.name, *options) as node:
            yield node, lambda: Program(node, folder)


def contexts_are_charged_until_they_end(tools):
    with node_of(tools) as (node, program):
        one = program()
        for word, used in (("1 retain", 1), ("3 retain", 1), *[("release", 1)] * 3, ("release", 0), ("1 retain", 1), ("reset", 0),
                           ("1 retain", 1), ("create", 2), ("create", 3), ("destroy", 2), ("green", 2), ("release", 2), ("release", 2),
                           ("end green", 1), ("destroy", 0), ("green", 1), ("1 retain", 1), ("end green", 1), ("release", 0)):
            one.then(word, used * CONTEXT)
        for _ in range(3):
            one.then(f"{AT_ONCE} retain", CONTEXT)
            for _ in range(AT_ONCE - 1):
                one.does("release")
            one.then("release", 0)
        one.end()
        nothing_is_left(node, "after contexts")


def context_without_room_is_refused(tools):
    with node_of(tools, f'context = "{CONTEXT}M"', "--limit", f"device_memory@*={LIMIT}M") as (node, program):
        one, other = program(), program()
        one.then("1 retain", CONTEXT)
        one.then("info", CONTEXT, f"{LIMIT - CONTEXT} of {LIMIT}, CUDA_SUCCESS")
        one.then("create", 2 * CONTEXT)
        other.then("create", 3 * CONTEXT)
        one.then("create", 3 * CONTEXT, NO_ROOM)
        other.then("1 retain", 3 * CONTEXT, NO_ROOM)
        other.then("green", 3 * CONTEXT, NO_ROOM)
        log = node.log.read_text()
        for function in ("cuCtxCreate_v4", "cuDevicePrimaryCtxRetain", "cuGreenCtxCreate"):
            if f'function={function} resource=device_memory device="Aviary Reference Device" asked={CONTEXT * MIB}' not in log:
                raise Wrong(f"{function}: {log[-1500:]}")
        # One that dies, and one that ends without destroying its contexts.
        one.process.kill()
        wait_until(HANG, "what it had is free", lambda: tenant_used(node)[0] == CONTEXT * MIB)
        one.process.wait()
        other.then("1 retain", 2 * CONTEXT)
        other.end()
        nothing_is_left(node, "after processes that ended with contexts")


def context_that_the_driver_refuses_costs_nothing(tools):
    with node_of(tools, takes=1 << 20) as (node, program):
        one = program()
        for word in ("1 retain", "create", "green"):
            one.then(word, 0, NO_ROOM)
        one.end()
        nothing_is_left(node, "after refusals")


def charge_is_the_same_after_moves_and_parks(tools):
    with node_of(tools) as (node, program):
        one = program()
        one.then("1 retain", CONTEXT)
        one.then("create", 2 * CONTEXT)
        one.then("allocate", 2 * CONTEXT + ALLOCATED)
        session, there = sessions(node, "cuda")[0]["session"], f"{8192 - 2 * CONTEXT - ALLOCATED} of 8192, CUDA_SUCCESS"
        for _ in range(2):
            status, answer = migrate(node, session)
            if status:
                raise Wrong(f"not moved: {answer}")
            one.then("info", 2 * CONTEXT + ALLOCATED, there)
            park(node, session)
            one.then("info", 2 * CONTEXT + ALLOCATED, there)
        one.then("create", 3 * CONTEXT + ALLOCATED)
        one.then("destroy", 2 * CONTEXT + ALLOCATED)
        one.then("destroy", CONTEXT + ALLOCATED)
        # Its memory is charged for as long as the API server keeps it.
        one.then("release", ALLOCATED)
        one.end()
        nothing_is_left(node, "after moves")


def resident(node):
    return sum(session["counters"].get("resident_memory@Aviary Reference Device.used", 0) for session in sessions(node, "cuda")) / MIB


def contexts_stay_while_memory_is_out(tools):
    memory = 2 * CONTEXT + ALLOCATED
    with node_of(tools, f'context = "{CONTEXT}M"\nmemory = "{memory}M"\noversubscribe = 2.0') as (node, program):
        one = program()
        one.then("1 retain", CONTEXT)
        one.then("allocate", CONTEXT + ALLOCATED)
        session = sessions(node, "cuda")[0]["session"]
        swap_out(node, session)
        if (tenant_used(node)[0] / MIB, resident(node)) != (CONTEXT + ALLOCATED, CONTEXT):
            raise Wrong(f"{tenant_used(node)}, {resident(node)} MiB are on the device")
        if swap(node, "in", session)[0]:
            raise Wrong(node.log.read_text()[-1500:])
        wait_until(HANG, "it is back", lambda: resident(node) == CONTEXT + ALLOCATED)
        other = program()
        # The other one's memory has no room beside both contexts unless this one's leaves.
        other.then("1 retain", 2 * CONTEXT + ALLOCATED)
        other.then("allocate", 2 * (CONTEXT + ALLOCATED))
        if resident(node) != memory:
            raise Wrong(f"{resident(node)} MiB are on the device instead of {memory}")
        one.then("info", 2 * (CONTEXT + ALLOCATED), f"{memory - CONTEXT - ALLOCATED} of {memory}, CUDA_SUCCESS")
        for each in (one, other):
            each.end()
        nothing_is_left(node, "after swaps")


@contextlib.contextmanager
def shared_memory(mib):
    """What node.toml says of a file by which processes have so much of the device together, and the variable that names it."""
    with tempfile.TemporaryDirectory(prefix="aviary-context-") as directory:
        file = Path(directory) / "memory"
        Path(directory).chmod(0o755)
        file.touch()
        file.chmod(0o666)
        yield f'[sandbox]\ndevices = ["{file}"]', {"REFCUDA_MEMORY": f"{file}:{mib * MIB}"}


def others_leave_for_a_context(tools):
    """The node believes that the device has more than it has: the driver has room for a context once others have left."""
    # As much as a context takes: without one nobody knows how much of that is missing.
    allocated = 2 * ALLOCATED
    short = 2 * CONTEXT + allocated // 2
    keys = f'context = "{CONTEXT}M"\nmemory = "1G"\noversubscribe = 2.0'
    with shared_memory(short) as (sandbox, variables), node_of(tools, f"{keys}\n{sandbox}", **variables) as (node, program):
        one, other = program(), program()
        one.then("1 retain", CONTEXT)
        one.then("allocate", CONTEXT + ALLOCATED)
        one.then("allocate", CONTEXT + allocated)
        for begin, end in (("create", "destroy"), ("1 retain", "release")):
            other.then(begin, 2 * CONTEXT + allocated)
            if resident(node) != 2 * CONTEXT:
                raise Wrong(f"{resident(node)} MiB are on the device: {node.log.read_text()[-1500:]}")
            other.then(end, CONTEXT + allocated)
            one.then("info", CONTEXT + allocated, f"{1024 - CONTEXT - allocated} of {short}, CUDA_SUCCESS")
        for each in (one, other):
            each.end()
        nothing_is_left(node, "after a short device")


def nothing_is_charged_where_it_is_switched_off(tools):
    with node_of(tools, 'context = "0"') as (node, program):
        one = program()
        for word in ("1 retain", "create", "destroy", "release"):
            one.then(word, 0)
        one.end()


def size_is_measured_when_the_node_starts(tools):
    """Processes share the device: what a context takes shows in what is left for others. An upgraded node knows it still."""
    with shared_memory(8192) as (sandbox, variables), node_of(tools, sandbox, **variables) as (node, program):
        one = program()
        one.then("1 retain", CONTEXT + LOADED_LATER)
        one.then("release", 0)
        one.end()
        node.settle()
        run([AVIARY, "upgrade", "--server", node.address])
        two = program()
        two.then("create", CONTEXT + LOADED_LATER)
        two.end()
        said = f'contexts on "Aviary Reference Device" are charged with {(CONTEXT + LOADED_LATER) * MIB} bytes of device_memory each'
        if node.log.read_text().count(said) != 2:
            raise Wrong(node.log.read_text()[-1500:])
        nothing_is_left(node, "after an upgrade")


ALL = {
    "context-charged": contexts_are_charged_until_they_end,
    "context-refused": context_without_room_is_refused,
    "context-failed": context_that_the_driver_refuses_costs_nothing,
    "context-moved": charge_is_the_same_after_moves_and_parks,
    "context-swapped": contexts_stay_while_memory_is_out,
    "context-short": others_leave_for_a_context,
    "context-measured": size_is_measured_when_the_node_starts,
    "context-off": nothing_is_charged_where_it_is_switched_off,
}
