"""A node whose program is replaced while its sessions go on (`aviary upgrade`)."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from fault_cases import Halted, accounts_are, kill
from harness.accelerator import Load, Stage, Tenant
from harness.process import AVIARY, HANG, Skipped, Wrong, alive, run, wait_until
from operator_cases import HOLDS_BYTES, MARKER_BYTES, end, holder, migrate, node_and_guests, start, tenant_used

# Programs under load at a time.
PROGRAMS = 4
# Programs that attach while the node is replaced.
ATTACHING = 20


def upgrade(node, *options):
    """Status and answer of `aviary upgrade`."""
    done = subprocess.run(
        [AVIARY, "upgrade", "--server", node.address, "--json", "--wait", str(HANG), *map(str, options)],
        capture_output=True, text=True, timeout=HANG * 4, check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}


def servers(node):
    return {session["session"]: session["server"] for session in node.report()["sessions"] if session["api"] == "testapi"}


def all_call(node, programs):
    """Each program makes further calls."""
    def counted():
        report = node.report()
        return {s["guest"]: s["counters"].get("calls", 0) for s in report["sessions"]} if report else {}
    before = counted()

    def further():
        ended = [(program.pid, program.returncode) for program in programs if program.poll() is not None]
        if ended:
            raise Wrong(f"programs ended: {ended}")
        now = counted()
        return all(now.get(program.pid, 0) > before.get(program.pid, 0) for program in programs)
    wait_until(HANG, "all programs make calls", further)


def replaced_again_and_again(tools, *options):
    """Three upgrades under load: the process and the sessions are the same ones, all API servers others, accounts exact."""
    with node_and_guests(tools, *options) as (node, environment):
        programs = [holder(tools, node, environment)[0] for _ in range(PROGRAMS)]
        idle, _ = holder(tools, node, environment, "idle", 600)
        for count in range(1, 4):
            before, report = servers(node), node.report()
            status, answer = upgrade(node)
            if status or answer["moved"] != PROGRAMS + 1 or answer["upgrades"] != count:
                raise Wrong(str(answer))
            after, now = servers(node), node.report()
            if set(after) != set(before) or set(after.values()) & set(before.values()):
                raise Wrong(f"before {before}, after {after}")
            if now["pid"] != report["pid"]:
                raise Wrong(f"process {report['pid']} before, {now['pid']} after")
            wait_until(HANG, "the old API servers are gone", lambda old=before: not any(alive(one) for one in old.values()))
            all_call(node, programs)
        third = start(tools.program("basic"), environment)
        third.communicate(timeout=HANG)
        if third.returncode:
            raise Wrong(f"a new program: {third.returncode}")
        used = tenant_used(node)[0] - (PROGRAMS + 1) * HOLDS_BYTES
        if used not in range(0, PROGRAMS * MARKER_BYTES + 1, MARKER_BYTES):
            raise Wrong(f"used {tenant_used(node)}")
        for program in (*programs, idle):
            end(program)
        node.settle()
        if tenant_used(node) != (0, 0):
            raise Wrong(f"used and held {tenant_used(node)} at the end")


def replaced_with_a_configuration(tools):
    """A node that could schedule devices later shares one more page with each session."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("[limits]\ndevice_memory = \"1G\"\n")
        file.flush()
        replaced_again_and_again(tools, "--config", file.name)


def inherited_processes_are_reaped(tools):
    """Only the node's program is replaced: it hears the deaths of API servers and guests that the one before has started."""
    with node_and_guests(tools) as (node, environment):
        one, session = holder(tools, node, environment)
        two, _ = holder(tools, node, environment)
        status, answer = upgrade(node, "--node-only")
        if status or answer["moved"]:
            raise Wrong(str(answer))
        all_call(node, [one, two])
        accounts = (2 * HOLDS_BYTES, 2 * HOLDS_BYTES + 2 * MARKER_BYTES)
        if not accounts[0] <= tenant_used(node)[0] <= accounts[1]:
            raise Wrong(f"used {tenant_used(node)}")
        kill(servers(node)[session])
        if one.wait(timeout=HANG) != 3:
            raise Wrong(f"the program ended with {one.returncode}")
        one.communicate()
        wait_until(HANG, "its session is gone", lambda: session not in servers(node))
        accounts_are(node, two)
        end(two)
        node.settle()
        if tenant_used(node) != (0, 0):
            raise Wrong(f"used and held {tenant_used(node)} at the end")


def programs_attach_meanwhile(tools):
    """Programs that begin while the node is replaced wait for a moment: none is refused."""
    with node_and_guests(tools) as (node, environment):
        program, _ = holder(tools, node, environment)
        with subprocess.Popen(
            [AVIARY, "upgrade", "--server", node.address, "--wait", str(HANG)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as upgrading:
            others = []
            for _ in range(ATTACHING):
                others.append(start(tools.program("basic"), environment))
            told = [(one, *one.communicate(timeout=HANG * 2)) for one in others]
            text, _ = upgrading.communicate(timeout=HANG * 4)
        wrong = [(one.returncode, errors) for one, _, errors in told if one.returncode]
        if wrong:
            raise Wrong(str(wrong[:3]))
        # Where something was always attaching it is refused by name.
        if upgrading.returncode and "try again" not in text:
            raise Wrong(text)
        all_call(node, [program])
        end(program)


def refused(node, why, *options):
    status, answer = upgrade(node, *options)
    if not status or why not in str(answer):
        raise Wrong(f"expected {why!r}: {status} {answer}")


def what_cannot_take_over_changes_nothing(tools):
    """A program that does not run, one that does not take over, and one that is gone when it is executed."""
    with node_and_guests(tools) as (node, environment), tempfile.TemporaryDirectory(prefix="aviary-upgrade-") as directory:
        program, session = holder(tools, node, environment)
        gone = Path(directory) / "gone"
        gone.write_text('#!/bin/sh\nrm "$0"\n', encoding="utf-8")
        gone.chmod(0o755)
        refused(node, "No such file", "--program", "/nowhere/aviary")
        refused(node, "cannot take over", "--program", "/bin/false")
        refused(node, "No such file", "--program", gone)
        for options, why in ((("--check", "0.0"), "its versions are"), (("--handover", "99"), "cannot take over")):
            command = [AVIARY, "serve", "--listen", f"unix:{directory}/other.sock", *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
            if done.returncode != 1 or why not in done.stderr:
                raise Wrong(f"{options}: {done.returncode} {done.stderr}")
        all_call(node, [program])
        # Spares and zygote come again.
        node.settle_pool()
        status, answer = migrate(node, session)
        if status:
            raise Wrong(str(answer))
        if upgrade(node)[0]:
            raise Wrong("a good program does not take over afterwards")
        all_call(node, [program])
        end(program)


def what_is_in_the_way_is_told(tools):
    """A move that is under way, and kinds of nodes that no upgrade knows."""
    with node_and_guests(tools) as (node, environment):
        program, session = holder(tools, node, environment)
        move = Halted(node, session, "captured")
        refused(node, "a session is being moved")
        move.release()
        all_call(node, [program])
        end(program)
    with tempfile.TemporaryDirectory(prefix="aviary-vm-") as directory:
        with node_and_guests(tools, "--vm", f"box={directory}/vm.sock") as (node, _):
            refused(node, "virtual machines")
    # Cards are in nobody's way, also one that has failed. tests/fpga-vm upgrades nodes whose cards work.
    with node_and_guests(tools, "--fpga", "card0=/nowhere/image.so") as (node, environment):
        program, _ = holder(tools, node, environment)
        if upgrade(node)[0]:
            raise Wrong("a node with a card is not upgraded")
        all_call(node, [program])
        end(program)


def limits_and_moves_go_on(tools):
    """Limits, moves and totals of a session and its tenant are known after an upgrade."""
    with node_and_guests(tools, "--limit", f"device_memory={HOLDS_BYTES + HOLDS_BYTES // 2}") as (node, environment):
        program, session = holder(tools, node, environment)
        for expected in (1, 2):
            if migrate(node, session)[0]:
                raise Wrong("not moved")
            if upgrade(node, "--node-only")[0]:
                raise Wrong("not upgraded")
            known = [one for one in node.report()["sessions"] if one["session"] == session][0]
            if known["moves"]["count"] != expected or known["api"] != "testapi":
                raise Wrong(str(known))
            other = start(tools.program("hold"), environment, 1)
            other.communicate(timeout=HANG)
            if other.returncode != 2:
                raise Wrong("a second program got memory beyond the limit")
        accounts_are(node, program)
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, signal.SIGKILL)
        program.communicate()
        node.settle()
        told = node.ask("tenants")
        peaks = [a["peak"] for t in told for a in t["accounts"] if a["resource"] == "device_memory" and not a.get("device")]
        if tenant_used(node) != (0, 0) or max(peaks) < HOLDS_BYTES:
            raise Wrong(f"{tenant_used(node)} {peaks}")


def scheduled_devices_are_scheduled_again(_tools):
    """Two tenants that share a scheduled device have their turns after an upgrade, too."""
    if os.geteuid() != 0:
        raise Skipped("tenants are users of their own here: only root can start processes as other users")
    load = Load(200, batch=4)
    with Stage() as stage, stage.node("fair", [Tenant(1, load), Tenant(2, load)]) as node:
        begin = time.monotonic()
        guests = [node.guest(number, load, begin, begin + 3600) for number in range(2)]

        def both_have_turns():
            report = json.loads(run([AVIARY, "ps", "--json", "--server", node.address]))[0]
            used = {t["tenant"]: t["used_ns"] for device in report["devices"] for t in device["tenants"]}
            return len(used) == 2 and all(used.values())
        wait_until(HANG, "both tenants have turns", both_have_turns)
        for _ in range(2):
            status, answer = upgrade(node, "--node-only")
            if status:
                raise Wrong(str(answer))
            wait_until(HANG, "both tenants have turns after an upgrade", both_have_turns)
        if any(guest.poll() is not None for guest in guests):
            raise Wrong(f"programs ended: {[guest.returncode for guest in guests]}")


ALL = {
    "upgrade-again": replaced_again_and_again,
    "upgrade-configured": replaced_with_a_configuration,
    "upgrade-reaps": inherited_processes_are_reaped,
    "upgrade-attaching": programs_attach_meanwhile,
    "upgrade-wrong": what_cannot_take_over_changes_nothing,
    "upgrade-refused": what_is_in_the_way_is_told,
    "upgrade-knows": limits_and_moves_go_on,
    "upgrade-scheduled": scheduled_devices_are_scheduled_again,
}
