"""Sessions that are parked: their devices are free, their programs stay, and the next call or an operator brings them back.

Processes die in every state: of parking (halted as in `fault_cases`), parked, and on the way back (the API server is stopped)."""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from fault_cases import Halted, STATES, accounts_are, goes_on, kill
from harness.process import AVIARY, HANG, Wrong, alive, wait_until
from operator_cases import HOLDS_BYTES, MARKER_BYTES, end, holder, migrate, node_and_guests, sessions, tenant_used
from upgrade_cases import upgrade


class Told:
    """A program that makes one call for each line."""

    # Of `hold`.
    how = "told"

    def __init__(self, tools, node, environment):
        self.node = node
        self.process = subprocess.Popen(
            [tools.program("hold"), self.how, "600"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        if self.answer()[:1] != ["holding"]:
            raise Wrong(f"hold did not attach: {self.process.communicate()}")
        wait_until(HANG, "the session", self.report)
        self.session = self.report()["session"]

    def report(self):
        return next((s for s in sessions(self.node) if s["guest"] == self.process.pid), None)

    def tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().split()

    def calls(self):
        self.tell()
        told = self.answer()
        if told != ["called"]:
            raise Wrong(f"the call answered {told}: {self.node.log.read_text()[-1500:]}")

    def is_lost(self):
        """Its next call is told, with the API's error for a device that is gone."""
        with contextlib.suppress(BrokenPipeError):
            self.tell()
        told = self.answer()
        if told[:1] != ["lost"] or self.process.wait(timeout=HANG) != 3:
            raise Wrong(f"the program was told {told}")
        self.process.communicate()

    def end(self):
        self.process.kill()
        self.process.communicate()


def command(node, word, session, *options):
    """Status and answer of `aviary park` or `aviary unpark`."""
    done = subprocess.run(
        [AVIARY, word, "--server", node.address, "--json", *map(str, options), str(session)],
        capture_output=True, text=True, timeout=HANG * 3, check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}


def park(node, session):
    status, answer = command(node, "park", session)
    if status != 0 or "parked" not in answer:
        raise Wrong(f"not parked: {answer}")
    return answer["parked"]


def is_parked(program, bytes_of_state=None):
    report = program.report()
    parked = report["parked"] if report and "parked" in report else None
    if parked is None:
        raise Wrong(f"it is not parked: {report}")
    if bytes_of_state not in (None, parked["bytes"]):
        raise Wrong(f"{parked}, not {bytes_of_state} bytes")
    return report


def runs(program):
    """It is not parked, and its accounts are exact: a session that was lost and made anew would have neither."""
    program.calls()
    report = program.report()
    if report is None or "parked" in report:
        raise Wrong(f"it does not run: {report}")
    used = tenant_used(program.node)
    markers = (used[0] - HOLDS_BYTES) / MARKER_BYTES
    if used[0] != used[1] or markers != int(markers) or not 0 <= markers < 100:
        raise Wrong(f"used and held {used}")
    return report


def opened(process):
    """What the process's descriptors are."""
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(descriptor)


def state_is_freed(program):
    """Its API server has closed the file of the state: that memory is free again."""
    server = program.report()["server"]
    wait_until(HANG, "the state is freed", lambda: not any("aviary-moved" in what for what in opened(server)))


def nothing_is_left(node, where):
    node.settle()
    report = node.report()
    if tenant_used(node) != (0, 0) or report["parked"]["used"]:
        raise Wrong(f"{where}: used and held {tenant_used(node)}, {report['parked']}")


def parked_session_holds_nothing_and_its_call_brings_it_back(tools):
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        before, used = program.report(), tenant_used(node)
        figures = park(node, program.session)
        report = is_parked(program, figures["bytes"])
        if tenant_used(node) != (0, 0) or report["counters"]["device_memory.used"] or alive(before["server"]):
            raise Wrong(f"used and held {tenant_used(node)}, {report}, old API server {before['server']}")
        if node.report()["parked"]["used"] != figures["bytes"] or report["moves"]["parks"] != 1:
            raise Wrong(str(node.report()))
        text = subprocess.run([AVIARY, "ps", "--server", node.address], capture_output=True, text=True, check=True).stdout
        if not re.search(rf"session {program.session} is parked: {figures['bytes']} bytes of state", text):
            raise Wrong(text)
        # A second park changes nothing; a move has nothing to move.
        if park(node, program.session)["bytes"] != figures["bytes"]:
            raise Wrong("parked twice")
        runs(program)
        state_is_freed(program)
        if not used[0] <= tenant_used(node)[0] <= used[0] + MARKER_BYTES or node.report()["parked"]["used"]:
            raise Wrong(f"used {used} before, {tenant_used(node)} now, {node.report()['parked']}")
        # By hand, again and again.
        for _ in range(5):
            park(node, program.session)
            status, answer = command(node, "unpark", program.session)
            if status or answer != "running" or "parked" in program.report():
                raise Wrong(f"{answer} {program.report()}")
            runs(program)
        status, answer = command(node, "unpark", program.session)
        if status or answer != "running":
            raise Wrong(f"of a session that runs: {answer}")
        status, answer = migrate(node, program.session)
        if status:
            raise Wrong(str(answer))
        runs(program)
        state_is_freed(program)
        status, answer = command(node, "park", 4711)
        if status == 0 or "there is no session 4711" not in answer["error"]:
            raise Wrong(str(answer))
        program.end()
        nothing_is_left(node, "at the end")


def busy_session_parks_between_two_calls(tools):
    """A program that calls all the time is parked and comes back at once, twenty times."""
    with node_and_guests(tools) as (node, environment):
        program, session = holder(tools, node, environment)
        for _ in range(20):
            park(node, session)
            goes_on(node, program)
        if sessions(node)[0]["moves"]["parks"] != 20:
            raise Wrong(str(sessions(node)))
        accounts_are(node, program)
        end(program)
        nothing_is_left(node, "at the end")


def state_without_room_stays(tools):
    """`parked_memory` bounds what is kept; what does not fit is told, and the session goes on."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("parked_memory = 1000\n")
        file.flush()
        with node_and_guests(tools, "--config", file.name) as (node, environment):
            program = Told(tools, node, environment)
            status, answer = command(node, "park", program.session, "--wait", "0")
            if status != 1 or "(parked_memory)" not in answer["refused"]["reason"]:
                raise Wrong(str(answer))
            runs(program)
            program.end()


def second_follows(node, first, second):
    """The second program waits for the room of the first one, and has it when that ends: its call is answered, and it ends."""
    wait_until(HANG, "the other one waits", lambda: "device_memory has" in second.report()["parked"]["state"])
    first.end()
    if second.answer() != ["called"]:
        raise Wrong("the call that waited")
    runs(second)
    second.end()
    nothing_is_left(node, "at the end")


def room_for_one(tools):
    """The room of a parked session is another one's: its call waits until that ends, and nobody gets a byte too much."""
    limit = HOLDS_BYTES + HOLDS_BYTES // 2
    with node_and_guests(tools, "--limit", f"device_memory={limit}") as (node, environment):
        first = Told(tools, node, environment)
        park(node, first.session)
        second = Told(tools, node, environment)
        first.tell()
        wait_until(HANG, "it waits for room", lambda: "device_memory has" in first.report()["parked"]["state"])
        status, answer = command(node, "unpark", first.session, "--wait", "0.2")
        if status != 1 or "device_memory has" not in answer["underway"]:
            raise Wrong(str(answer))
        measured = subprocess.run([AVIARY, "metrics", "--server", node.address], capture_output=True, text=True, check=True, timeout=HANG)
        samples = [line for line in measured.stdout.splitlines() if line.startswith("aviary_parked_bytes{")]
        if len(samples) != 1 or f'session="{first.session}"' not in samples[0] or "device_memory has" not in samples[0]:
            raise Wrong(f"metrics: {samples}")
        second.calls()
        if tenant_used(node)[0] > limit:
            raise Wrong(f"used {tenant_used(node)} of {limit}")
        # They take turns: each is parked while the other one runs.
        park(node, second.session)
        if first.answer() != ["called"]:
            raise Wrong("the call that waited")
        second.tell()
        second_follows(node, first, second)


def first_to_wait_is_first_to_return(tools):
    """Two parked sessions wait for the room of one that runs: the one that has waited longer comes back, the other one after it."""
    limit = HOLDS_BYTES + HOLDS_BYTES // 2
    with node_and_guests(tools, "--limit", f"device_memory={limit}") as (node, environment):
        waiting = []
        for _ in range(2):
            waiting.append(Told(tools, node, environment))
            park(node, waiting[-1].session)
        running = Told(tools, node, environment)
        first, second = waiting
        for program, reason in ((first, "device_memory has"), (second, "1 of its tenant's parked programs come back first")):
            program.tell()
            wait_until(HANG, reason, lambda p=program, r=reason: r in p.report()["parked"]["state"])
        running.end()
        if first.answer() != ["called"]:
            raise Wrong("the call that waited longest")
        second_follows(node, first, second)


def tenant_pays_for_states(tools):
    """The host memory of a state is the tenant's, from API server to API server, until the session is back or has ended."""
    def swap(node):
        used, held = tenant_used(node, "host_swap")
        if used != held:
            raise Wrong(f"used {used}, held {held}")
        return used

    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        size = park(node, program.session)["bytes"]
        if swap(node) != size:
            raise Wrong(f"{swap(node)} bytes of host_swap for {size}")
        watcher = program.report()["server"]
        os.kill(watcher, signal.SIGKILL)
        wait_until(HANG, "another one watches", lambda: program.report()["server"] not in (0, watcher))
        wait_until(HANG, "it is charged", lambda: swap(node) == size)
        runs(program)
        if swap(node):
            raise Wrong(f"{swap(node)} bytes of host_swap for a session that is back")
        program.end()
    with node_and_guests(tools, "--limit", f"host_swap={size + size // 2}") as (node, environment):
        first, second = (Told(tools, node, environment) for _ in range(2))
        park(node, first.session)
        status, answer = command(node, "park", second.session, "--wait", "0")
        if status != 1 or "host_swap" not in answer["refused"]["reason"]:
            raise Wrong(str(answer))
        second.calls()
        first.end()
        wait_until(HANG, "its state is gone", lambda: swap(node) == 0)
        park(node, second.session)
        second.end()
        nothing_is_left(node, "at the end")
        wait_until(HANG, "nothing is charged", lambda: swap(node) == 0)


def idle_session_parks_itself(tools):
    """`idle_park` of the node and of a tenant."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('idle_park = "300ms"\n')
        file.flush()
        with node_and_guests(tools, "--config", file.name) as (node, environment):
            busy, _ = holder(tools, node, environment)
            program = Told(tools, node, environment)
            for count in range(1, 3):
                wait_until(HANG, "it is parked", lambda n=count: program.report()["moves"]["parks"] >= n)
                wait_until(HANG, "all of its room is free", lambda: "parked" in program.report())
                program.calls()
            wait_until(HANG, "it is parked", lambda: "parked" in program.report())
            if sessions(node)[0]["moves"]["parks"]:
                raise Wrong(f"a busy session was parked: {sessions(node)}")
            end(busy)
            program.end()
            nothing_is_left(node, "at the end")
        uid = os.getuid()
        file.write(f'[tenants.me]\nusers = [{uid}]\nidle_park = "0s"\n')
        file.flush()
        with node_and_guests(tools, "--config", file.name) as (node, environment):
            program = Told(tools, node, environment)
            # Long enough for the node's own time, on a machine that is not slower than ten of the usual ones.
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(timeout=1)
            if "parked" in program.report():
                raise Wrong(str(program.report()))
            program.end()


class HaltedPark(Halted):
    """A park that is brought to a state and stays there."""

    request = {"park": True}


# Whose death the session survives, and where it is then: before the state is written the old API server is all there is.
BEFORE_THE_STATE = {"old": "lost", "new": "runs", "both": "lost"}
WITH_THE_STATE = {"old": "parked", "new": "runs", "both": "lost"}
FATES = {"prepared": BEFORE_THE_STATE, "ordered": BEFORE_THE_STATE, "captured": WITH_THE_STATE, "handed": WITH_THE_STATE,
         "rebuilt": WITH_THE_STATE}
# As of a move; nothing is announced.
PARK_STATES = [state for state in STATES if state not in ("asked", "announced", "preparing")]


def goes_on_after(move, node, program, fate, victim):
    """The session of an attempt to park that is disturbed is parked or not, as `fate` says, runs, parks and runs to its end."""
    wait_until(HANG, "the attempt is over", lambda: "underway" not in move.status())
    if fate == "parked":
        is_parked(program)
        if tenant_used(node) != (0, 0):
            raise Wrong(f"{victim}: used and held {tenant_used(node)}")
    runs(program)
    park(node, program.session)
    runs(program)
    program.end()


def dies_while_parking(state):
    """Old, new or both API servers die in one state of parking."""
    def case(tools):
        with node_and_guests(tools) as (node, environment):
            for victim, fate in FATES[state].items():
                program = Told(tools, node, environment)
                move = HaltedPark(node, program.session, state)
                kill(*{"old": [move.old], "new": [move.new], "both": [move.old, move.new]}[victim])
                move.release()
                if fate == "lost":
                    program.is_lost()
                else:
                    goes_on_after(move, node, program, fate, victim)
                nothing_is_left(node, f"{state}, {victim}")
    return case


def on_its_way_back(node, program):
    """A call was made, what the session held is charged again, and its API server, which has the order, stands still."""
    node.settle_pool()
    server = program.report()["server"]
    os.kill(server, signal.SIGSTOP)
    status = node.ask({"unpark": program.session})
    if status != {"underway": "unparking"}:
        raise Wrong(str(status))
    program.tell()
    return server


def api_server_dies_while_parked(tools):
    """The API server that watches is replaced: the session is parked as before, and what was called is answered."""
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        park(node, program.session)
        for _ in range(3):
            watcher = is_parked(program)["server"]
            kill(watcher)
            wait_until(HANG, "another one watches", lambda w=watcher: program.report()["server"] not in (0, w))
            is_parked(program)
            if tenant_used(node) != (0, 0):
                raise Wrong(f"used and held {tenant_used(node)}")
        runs(program)
        park(node, program.session)
        kill(on_its_way_back(node, program))
        if program.answer() != ["called"]:
            raise Wrong(f"the call on the way back: {node.log.read_text()[-1500:]}")
        runs(program)
        # From here on it is an API server like any other.
        kill(program.report()["server"])
        program.is_lost()
        nothing_is_left(node, "at the end")


def others_die_while_parked(tools):
    """The program, an operator or the node ends a session that is parked, or is on its way back."""
    with node_and_guests(tools) as (node, environment):
        for returns in (False, True):
            def ready(back=returns):
                program = Told(tools, node, environment)
                park(node, program.session)
                stopped = on_its_way_back(node, program) if back else None
                return program, program.report()["server"], stopped
            program, server, _ = ready()
            program.end()
            wait_until(HANG, "its API server is gone", lambda s=server: not alive(s))
            nothing_is_left(node, f"the program's end, {returns}")
            program, server, _ = ready()
            subprocess.run(
                [AVIARY, "end", "--server", node.address, str(program.session)], check=True, capture_output=True, timeout=HANG
            )
            program.is_lost()
            nothing_is_left(node, f"the operator's end, {returns}")
            program, server, stopped = ready()
            left = node.kill()
            if stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
            program.is_lost()
            wait_until(HANG, "no API server is left", lambda all=left: not any(alive(one) for one in all))
            node.start()


def guest_dies_while_parking(tools):
    """The program dies in every state of parking: nothing of it is left."""
    with node_and_guests(tools) as (node, environment):
        for state in PARK_STATES:
            program = Told(tools, node, environment)
            move = HaltedPark(node, program.session, state)
            program.end()
            move.release()
            wait_until(HANG, f"{state}: both API servers are gone", lambda m=move: not alive(m.old) and not alive(m.new))
            nothing_is_left(node, state)


def parked_session_survives_an_upgrade(tools):
    """The program of the node is replaced while a session is parked."""
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        bytes_of_state = park(node, program.session)["bytes"]
        for options in (["--node-only"], []):
            status, answer = upgrade(node, *options)
            if status:
                raise Wrong(str(answer))
            is_parked(program, bytes_of_state)
            if tenant_used(node) != (0, 0):
                raise Wrong(f"used and held {tenant_used(node)}")
            whole = (bytes_of_state, bytes_of_state)
            wait_until(HANG, "the state is charged once", lambda w=whole: tenant_used(node, "host_swap") == w)
        runs(program)
        program.end()
        nothing_is_left(node, "at the end")


ALL = {
    "park": parked_session_holds_nothing_and_its_call_brings_it_back,
    "park-busy": busy_session_parks_between_two_calls,
    "park-memory": state_without_room_stays,
    "park-room": room_for_one,
    "park-order": first_to_wait_is_first_to_return,
    "park-swap": tenant_pays_for_states,
    "park-idle": idle_session_parks_itself,
    **{f"park-dies-{state}": dies_while_parking(state) for state in FATES},
    "park-dies-parked": api_server_dies_while_parked,
    "park-dies-others": others_die_while_parked,
    "park-dies-guest": guest_dies_while_parking,
    "park-upgrade": parked_session_survives_an_upgrade,
}
