"""Processes that die in every state of a move, moves that have nowhere to go, and moves at the limit of a tenant.

A move is halted between a report and the node's step after it (`halt` of the request, which only the admin socket has), or
stands because a process that has to answer is stopped. So each state holds until a victim is dead, however slow the machine."""

import contextlib
import itertools
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from harness.process import AVIARY, HANG, ROOT, Wrong, alive, wait_until
from operator_cases import (
    HOLDS_BYTES, MARKER_BYTES, calls, end, holder, migrate, node_and_guests, sessions, start, tenant_used,
)

# Fates of a session when a process dies in a state: it goes on in the new API server, in the old one, or its program is told.
MOVED, STAYS, LOST = "moved", "stays", "lost"
BEFORE_THE_STATE = {"old": LOST, "new": STAYS, "both": LOST}
WITH_THE_STATE = {"old": MOVED, "new": STAYS, "both": LOST}
AFTER_THE_COMMIT = {"old": MOVED, "new": LOST, "both": LOST}
STATES = {
    # The order to announce lies in the socket of the old API server, which is stopped.
    "asked": BEFORE_THE_STATE,
    # The node has what was announced.
    "announced": BEFORE_THE_STATE,
    # That lies in the socket of the new API server, which is stopped.
    "preparing": BEFORE_THE_STATE,
    # The new API server has its modules; nothing was ordered.
    "prepared": BEFORE_THE_STATE,
    # The order to capture lies in the socket of the old one, which is stopped.
    "ordered": BEFORE_THE_STATE,
    # The node has the state.
    "captured": WITH_THE_STATE,
    # The state lies in the socket of the new one, which is stopped.
    "handed": WITH_THE_STATE,
    # The session stands in both.
    "rebuilt": WITH_THE_STATE,
    # It is the new one's, which is stopped: the order to go on lies in its socket.
    "committed": AFTER_THE_COMMIT,
}
HALTS = {"preparing": "announced", "ordered": "prepared", "handed": "captured", "committed": "rebuilt"}
# Their message goes to the old API server.
TO_THE_OLD = {"asked", "ordered"}


class Halted:
    """A move that is brought to a state and stays there."""

    # Of the operator, beside the session.
    request = {}

    def __init__(self, node, session, state):
        self.node, self.state, self.stopped = node, state, None
        self.old = sessions(node)[0]["server"]
        node.settle_pool()
        request = {"session": session, "check": False, "stop_ms": 60000, **self.request}
        if state == "asked":
            self.stop(self.old)
            self.begin(request)
            return
        halt = HALTS.get(state, state)
        self.begin({**request, "halt": halt})
        wait_until(HANG, f"the move is halted: {halt}", lambda: "halted" in str(self.status()))
        if state in HALTS:
            self.stop(self.old if state in TO_THE_OLD else self.new)
            self.proceed()

    def begin(self, request):
        self.number = self.node.ask({"migrate": request})["number"]
        self.new = [server["server"] for server in self.node.report()["servers"] if server["server"] != self.old][0]

    def stop(self, process):
        self.stopped = process
        os.kill(process, signal.SIGSTOP)

    def status(self):
        return self.node.ask({"movestatus": self.number})

    def proceed(self):
        return self.node.ask({"proceed": self.number})

    def release(self):
        """The move goes on with whatever is left of its processes."""
        if self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.stopped, signal.SIGCONT)
        else:
            self.proceed()


def kill(*processes):
    """Ends processes, with all threads: before that a process is no zombie that the node could see."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            end = os.pidfd_open(process)
            try:
                signal.pidfd_send_signal(end, signal.SIGKILL)
                if not select.select([end], [], [], HANG)[0]:
                    raise Wrong(f"process {process} does not die")
            finally:
                os.close(end)


def goes_on(node, program):
    """The program makes calls, in this API server."""
    before = calls(node) or 0
    wait_until(HANG, "the program makes calls", lambda: program.poll() is not None or (calls(node) or 0) > before)
    if program.poll() is not None:
        raise Wrong(f"the program ended with {program.returncode}: {program.communicate()}")
    return sessions(node)[0]["server"]


def accounts_are(node, program):
    """Used and held are what `hold` has, looked at while it stands."""
    program.send_signal(signal.SIGSTOP)
    try:
        exact = [(HOLDS_BYTES + extra, HOLDS_BYTES + extra) for extra in (0, MARKER_BYTES)]
        wait_until(HANG, f"the accounts are exact: {tenant_used(node)}", lambda: tenant_used(node) in exact)
    finally:
        program.send_signal(signal.SIGCONT)


def victims(state):
    """Old, new or both API servers die in one state."""
    def case(tools):
        with node_and_guests(tools) as (node, environment):
            for victim, expected in STATES[state].items():
                program, session = holder(tools, node, environment)
                move = Halted(node, session, state)
                kill(*{"old": [move.old], "new": [move.new], "both": [move.old, move.new]}[victim])
                move.release()
                if expected == LOST:
                    if program.wait(timeout=HANG) != 3:
                        raise Wrong(f"{victim}: the program ended with {program.returncode}: {program.communicate()}")
                    program.communicate()
                else:
                    serves = goes_on(node, program)
                    if serves != (move.new if expected == MOVED else move.old):
                        raise Wrong(f"{victim}: expected {expected}, old {move.old}, new {move.new}, serves {serves}: {move.status()}")
                    accounts_are(node, program)
                    other = move.old if expected == MOVED else move.new
                    wait_until(HANG, "the other API server is gone", lambda gone=other: not alive(gone))
                    # The death is no obstacle to the next move.
                    status, answer = migrate(node, session)
                    if status != 0:
                        raise Wrong(f"{victim}: {answer}")
                    goes_on(node, program)
                    end(program)
                node.settle()
                if tenant_used(node) != (0, 0):
                    raise Wrong(f"{victim}: used and held {tenant_used(node)} at the end")
    return case


def guest_dies(tools):
    """The program dies in every state: nothing of it is left."""
    with node_and_guests(tools) as (node, environment):
        for state in STATES:
            program, session = holder(tools, node, environment)
            move = Halted(node, session, state)
            end(program)
            move.release()
            wait_until(HANG, f"{state}: both API servers are gone", lambda m=move: not alive(m.old) and not alive(m.new))
            node.settle()
            if tenant_used(node) != (0, 0):
                raise Wrong(f"{state}: used and held {tenant_used(node)} at the end")


def node_dies(tools):
    """The node dies in every state: its API servers end, and the program is told."""
    with node_and_guests(tools) as (node, environment):
        for state in STATES:
            program, session = holder(tools, node, environment)
            move = Halted(node, session, state)
            left = node.kill()
            if move.stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(move.stopped, signal.SIGCONT)
            if program.wait(timeout=HANG) != 3:
                raise Wrong(f"{state}: the program ended with {program.returncode}: {program.communicate()}")
            program.communicate()
            wait_until(HANG, f"{state}: no API server is left", lambda all=left: not any(alive(one) for one in all))
            node.start()


def slow_rebuild_survives_its_source(tools):
    """The old API server dies long before the new one is done: the node does not kill what is dead, and the session moves."""
    with node_and_guests(tools) as (node, environment):
        program, session = holder(tools, node, environment)
        move = Halted(node, session, "handed")
        kill(move.old)
        # Beyond the time after which the node kills an API server that has closed its socket.
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(timeout=2)
        if "underway" not in move.status():
            raise Wrong(str(move.status()))
        move.release()
        if goes_on(node, program) != move.new:
            raise Wrong(str(move.status()))
        accounts_are(node, program)
        end(program)


def two_in_a_row(tools):
    """Operators who ask at once, and moves that follow each other without a pause."""
    with node_and_guests(tools) as (node, environment):
        program, session = holder(tools, node, environment)
        command = [AVIARY, "migrate", "--server", node.address, "--wait", str(HANG), str(session)]
        for _ in range(5):
            both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
            for one in both:
                told, _ = one.communicate(timeout=HANG * 3)
                if one.returncode:
                    raise Wrong(told)
        if sessions(node)[0]["moves"]["count"] != 10:
            raise Wrong(str(sessions(node)))
        # Some 750 objects, charged in steps of 64: a tenth of what it would be if each move charged them once more.
        if not 700 < tenant_used(node, "handles")[0] < 1400:
            raise Wrong(f"handles: {tenant_used(node, 'handles')}")
        goes_on(node, program)
        accounts_are(node, program)
        end(program)


def full_tenant(tools):
    """Two sessions have all that their tenant may have: each moves, neither is refused anything, and nobody else gets a byte."""
    limit = 2 * HOLDS_BYTES + MARKER_BYTES
    with node_and_guests(tools, "--limit", f"device_memory={limit}") as (node, environment):
        idle = holder(tools, node, environment, "idle", 600)
        busy = holder(tools, node, environment)
        for _ in range(5):
            for _, session in (idle, busy):
                status, answer = migrate(node, session)
                if status != 0:
                    raise Wrong(str(answer))
                if tenant_used(node)[0] > limit:
                    raise Wrong(f"used {tenant_used(node)} of {limit}")
            third = start(tools.program("hold"), environment, 1)
            third.communicate()
            if third.returncode != 2:
                raise Wrong("a third program got memory beyond the limit")
        if busy[0].poll() is not None or idle[0].poll() is not None:
            raise Wrong(f"a program ended: {busy[0].poll()}, {idle[0].poll()}")
        for program, _ in (idle, busy):
            end(program)


def no_room_for_the_log(tools):
    """A tenant whose object logs have no room: its session makes its calls, and cannot be moved."""
    with node_and_guests(tools, "--limit", "host_log=65536") as (node, environment):
        program, session = holder(tools, node, environment)
        before = sessions(node)[0]["server"]
        status, answer = migrate(node, session)
        if status != 1 or "object log is larger than it may be" not in str(answer):
            raise Wrong(str(answer))
        if goes_on(node, program) != before or tenant_used(node, "host_log") != (0, 0):
            raise Wrong(f"{sessions(node)} {tenant_used(node, 'host_log')}")
        accounts_are(node, program)
        end(program)


def limit_with_room(pid, room):
    """A limit of descriptor numbers below which so many are free."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    free = 0
    for number in itertools.count():
        if free == room:
            return number
        free += number not in taken


def no_room_for_a_new_one(tools):
    """A node that cannot start an API server refuses before anything is stopped, with the reason, and later it can."""
    with node_and_guests(tools, "--spares", "0", "--no-zygote") as (node, environment):
        program, session = holder(tools, node, environment)
        before = sessions(node)[0]["server"]
        own, most = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        # Enough to hear a request, and not for an API server.
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (limit_with_room(node.pid, 3), most))
        number = node.ask({"migrate": {"session": session, "check": False, "stop_ms": 5000}})
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (own, most))
        told = node.ask({"movestatus": number["number"]}) if "number" in number else number
        if "no new API server is available" not in str(told):
            raise Wrong(f"{number} {told}")
        if goes_on(node, program) != before:
            raise Wrong("it moved")
        status, answer = migrate(node, session)
        if status != 0:
            raise Wrong(str(answer))
        goes_on(node, program)
        end(program)


def other_specification(tools):
    """The module that a new API server loads is from another specification: refused by name before anything is stopped, and
    moved where the module of the build before is kept. So are new programs with the guest library of that time."""
    built = ROOT / "target/aviary/testapi"
    number = int(re.search(r"spec_hash: (\d+)u64", (built / "gen/server/lib.rs").read_text(encoding="utf-8"))[1])
    with tempfile.TemporaryDirectory(prefix="aviary-modules-") as directory:
        api = Path(directory) / "testapi"
        shutil.copytree(built, api, ignore=shutil.ignore_patterns("gen", "modules"))
        with node_and_guests(tools, "--api-dir", directory, "--no-zygote", "--spares", "0") as (node, environment):
            program, session = holder(tools, node, environment)
            before = sessions(node)[0]["server"]
            code = (api / "server.so").read_bytes()
            own, other = (value.to_bytes(8, "little") for value in (number, number ^ 1))
            if own not in code:
                raise Wrong("the module does not have its own hash")
            # Beside it, and then in its place: the old API server has the file mapped.
            (api / "new").write_bytes(code.replace(own, other))
            (api / "new").rename(api / "server.so")
            status, answer = migrate(node, session)
            refused = answer.get("refused", {})
            if status != 1 or "from another specification" not in refused.get("reason", "") or not refused["lasting"]:
                raise Wrong(str(answer))
            if goes_on(node, program) != before:
                raise Wrong("it moved")
            if sessions(node)[0]["moves"].get("last_us") is not None:
                raise Wrong(f"it stood: {sessions(node)}")
            old = start(tools.program("basic"), environment)
            if not old.communicate() or not old.returncode:
                raise Wrong("a program with another specification's guest library was served")
            (api / "modules").mkdir()
            (api / "modules" / f"{number:016x}.so").write_bytes(code)
            status, answer = migrate(node, session)
            if status != 0 or goes_on(node, program) == before:
                raise Wrong(str(answer))
            old = start(tools.program("basic"), environment)
            if not old.communicate() or old.returncode:
                raise Wrong(f"a program with the guest library of the build before ended with {old.returncode}")
            end(program)


ALL = {
    **{f"dies-{state}": victims(state) for state in STATES},
    "dies-guest": guest_dies,
    "dies-node": node_dies,
    "dies-early": slow_rebuild_survives_its_source,
    "row": two_in_a_row,
    "full": full_tenant,
    "log": no_room_for_the_log,
    "room": no_room_for_a_new_one,
    "specification": other_specification,
}
