"""Moves that an operator asks for, while the programs run."""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time

from harness.node import guest_environment, running
from harness.process import AVIARY, HANG, Wrong, alive, wait_until

# Kills of old and new API servers while their sessions move, and with --long.
KILLS, MANY_KILLS = 40, 400
# Device memory of `hold`: a buffer and, of 1000 markers, those that were made. It makes and ends one more all the time.
MARKER_BYTES = 10
HOLDS_BYTES = (1 << 20) + 750 * MARKER_BYTES


@contextlib.contextmanager
def node_and_guests(tools, *options):
    """A node, and the environment of guests of testapi."""
    with running(tools.testapi, *options) as node, guest_environment("testapi", tools.testapi, node.address) as guests:
        yield node, guests


def start(program, environment, *arguments):
    return subprocess.Popen(
        [program, *map(str, arguments)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def sessions(node, api="testapi"):
    report = node.report()
    return [session for session in report["sessions"] if session["api"] == api] if report else []


def migrate(node, session, *options):
    """Status and answer of `aviary migrate`."""
    done = subprocess.run(
        [AVIARY, "migrate", "--server", node.address, "--json", *map(str, options), str(session)],
        capture_output=True, text=True, timeout=HANG * 3, check=False,
    )
    answer = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}
    return done.returncode, answer


def holder(tools, node, environment, *arguments):
    """A program that calls until it is lost, its session, and what it has printed first."""
    program = start(tools.program("hold"), environment, *(arguments or (600,)))
    words = program.stdout.readline().split()
    if not words or words[0] != "holding":
        raise Wrong(f"hold did not attach: {words}, status {program.wait(timeout=HANG)}: {program.communicate()[1][-500:]}")
    mine = wait_until(HANG, "the session", lambda: [s for s in sessions(node) if s["guest"] == program.pid])
    return program, mine[0]["session"]


def end(program):
    program.kill()
    program.communicate()


def moves_again_and_again(tools):
    """A program that makes objects and calls without a pause moves twenty times, and its output is right."""
    with node_and_guests(tools) as (node, environment):
        program, session = holder(tools, node, environment)
        before = sessions(node)[0]["server"]
        for count in range(1, 21):
            status, answer = migrate(node, session)
            if status != 0 or "moved" not in answer:
                raise Wrong(f"move {count}: {answer}")
            now = sessions(node)[0]
            if now["server"] in (before, 0) or now["moves"]["count"] != count:
                raise Wrong(f"move {count}: {now}")
            wait_until(HANG, "the old API server is gone", lambda old=before: not alive(old))
            before = now["server"]
        if program.poll() is not None:
            raise Wrong(f"the program ended: {program.communicate()}")
        end(program)


def check_tells_and_moves_nothing(tools):
    with node_and_guests(tools) as (node, environment):
        program, session = holder(tools, node, environment)
        before = sessions(node)[0]["server"]
        status, answer = migrate(node, session, "--check")
        if status != 0 or answer["movable"]["bytes"] == 0 or sessions(node)[0]["server"] != before:
            raise Wrong(str(answer))
        status, answer = migrate(node, 4711)
        if status == 0 or "there is no session 4711" not in answer["error"]:
            raise Wrong(str(answer))
        end(program)


def node_without_records_moves_nothing(tools):
    """`movable = false` in the node's file: its sessions are refused, and go on."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("movable = false\n")
        file.flush()
        with node_and_guests(tools, "--config", file.name) as (node, environment):
            program, session = holder(tools, node, environment)
            status, answer = migrate(node, session)
            if status != 1 or not answer["refused"]["lasting"] or program.poll() is not None:
                raise Wrong(f"{answer} {program.poll()}")
            end(program)


def mirrored_program_stays_by_name(tools):
    """A program without shared memory is refused with that reason, at once, and goes on."""
    with node_and_guests(tools) as (node, environment):
        program, session = holder(tools, node, environment | {"AVIARY_TRANSPORT": "stream"})
        for _ in range(2):
            status, answer = migrate(node, session)
            if status != 1 or "shares no memory" not in answer["refused"]["reason"] or not answer["refused"]["lasting"]:
                raise Wrong(str(answer))
        if "shares no memory" not in sessions(node)[0]["moves"]["refused"] or program.poll() is not None:
            raise Wrong(f"{sessions(node)} {program.poll()}")
        end(program)


def accounts_are_exact_while_sessions_move(tools):
    """Two programs near the limit of their tenant, an idle one and one that makes and ends markers all the time: what is used
    and held is what they have, at every look."""
    both = 2 * HOLDS_BYTES
    with node_and_guests(tools, "--limit", f"device_memory={both + HOLDS_BYTES // 2}") as (node, environment):
        first = holder(tools, node, environment, "idle", 600)
        second = holder(tools, node, environment)

        def exact():
            second[0].send_signal(signal.SIGSTOP)
            try:
                wait_until(HANG, f"{both} bytes are used and held", lambda: tenant_used(node) in (
                    (both, both), (both + MARKER_BYTES, both + MARKER_BYTES)
                ))
            finally:
                second[0].send_signal(signal.SIGCONT)

        def third_is_refused():
            third = start(tools.program("hold"), environment, 1)
            if third.wait(timeout=HANG) != 2:
                raise Wrong("a third program got memory beyond the limit")
            third.communicate()

        third_is_refused()
        exact()
        for _ in range(10):
            for _, session in (first, second):
                status, answer = migrate(node, session)
                if status != 0:
                    raise Wrong(str(answer))
                exact()
            third_is_refused()
        for program, _ in (first, second):
            end(program)
        wait_until(HANG, "nothing is held", lambda: tenant_used(node) == (0, 0))


def tenant_used(node, resource="device_memory"):
    """Used and held of a resource (of device memory), over all tenants."""
    done = subprocess.run(
        [AVIARY, "tenant", "list", "--json", "--server", node.address], capture_output=True, text=True, timeout=HANG, check=True
    )
    tenants = json.loads(done.stdout)
    accounts = [a for t in tenants for a in t["accounts"] if a["resource"] == resource and not a.get("device")]
    return sum(a["used"] for a in accounts), sum(a["held"] for a in accounts)


def kills_at_any_time(tools, count=KILLS):
    """Old and new API servers, killed at random points of moves: a session is moved or as before, or its program is told."""
    choose = random.Random(20261125)
    with node_and_guests(tools) as (node, environment):
        lost = kept = 0
        program, session = holder(tools, node, environment)
        for _ in range(count):
            if program.poll() is not None:
                program.communicate()
                program, session = holder(tools, node, environment)
            serving = sessions(node)[0]["server"]
            with subprocess.Popen(
                [AVIARY, "migrate", "--server", node.address, "--json", "--wait", "0", str(session)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            ) as moving:
                time.sleep(choose.random() * 0.03)
                report = node.report()
                others = [server["server"] for server in report["servers"]]
                victim = serving if choose.random() < 0.5 or not others else others[0]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                moving.communicate(timeout=HANG * 3)
            time.sleep(0.02)
            now = wait_until(HANG, "the session is there or its program told", lambda: outcome(node, program))
            lost, kept = (lost + 1, kept) if now == "lost" else (lost, kept + 1)
            if now == "lost" and program.wait(timeout=HANG) != 3:
                raise Wrong(f"the program ended with {program.returncode}: {program.communicate()}")
        print(f"     {count} kills: {kept} sessions kept, {lost} told", flush=True)
        if program.poll() is None:
            end(program)
        node.settle()
        if tenant_used(node) != (0, 0):
            raise Wrong(f"used and held {tenant_used(node)} at the end")


def outcome(node, program):
    if program.poll() is not None:
        return "lost"
    before = calls(node)
    time.sleep(0.1)
    return "goes on" if before is not None and (calls(node) or 0) > before else None


def calls(node):
    mine = sessions(node)
    return mine[0]["counters"].get("calls") if mine else None


# Only with --long.
LONG = {"many-kills": lambda tools: kills_at_any_time(tools, MANY_KILLS)}
ALL = {
    "again": moves_again_and_again,
    "check": check_tells_and_moves_nothing,
    "unrecorded": node_without_records_moves_nothing,
    "mirror": mirrored_program_stays_by_name,
    "limit": accounts_are_exact_while_sessions_move,
    "kills": kills_at_any_time,
}
