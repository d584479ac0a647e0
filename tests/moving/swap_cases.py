"""Sessions whose device memory leaves for the host and returns, while they stay in their API servers: by an operator, and where
programs have more memory than the device."""

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from harness.node import guest_environment, running
from harness.process import AVIARY, HANG, Wrong, alive, wait_until
from operator_cases import HOLDS_BYTES, node_and_guests, sessions, tenant_used
from parking_cases import Told, command, nothing_is_left, park, runs

# Of the buffer of `hold`.
BUFFER = 1 << 20
# The small device, and programs of which each takes nearly all of it.
MEMORY, BUFFERS, BYTES = 4 << 20, 10, 350_000
# Processes in testapi's file of memory, behind whose amounts the most is that there was at a time.
PROCESSES = 256
# Clock ticks of processor time that an API server may use that has nothing to do.
IDLE_TICKS = 2


def swap(node, way, session, *options):
    """Status and answer of `aviary swap out` or `in`."""
    done = subprocess.run(
        [AVIARY, "swap", way, "--server", node.address, "--json", *map(str, options), str(session)],
        capture_output=True, text=True, timeout=HANG * 3, check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}


def swap_out(node, session):
    status, answer = swap(node, "out", session)
    if status != 0 or answer["place"] != "out":
        raise Wrong(f"not swapped out: {answer}: {node.log.read_text()[-1500:]}")
    return answer


def host_swap(node):
    return tenant_used(node, "host_swap")


def session_stays_in_its_process_and_its_call_brings_its_memory_back(tools):
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        server, used = program.report()["server"], tenant_used(node)
        for turn in range(1, 4):
            figures = swap_out(node, program.session)
            report = program.report()
            if figures["bytes"] != BUFFER or report["swapped"]["place"] != "out" or figures["outs"] != turn:
                raise Wrong(f"{figures}, {report}")
            if tenant_used(node) != used or host_swap(node) != (BUFFER, BUFFER) or report["server"] != server:
                raise Wrong(f"used {tenant_used(node)}, swap {host_swap(node)}, {report}")
            # The program does not write its buffer.
            if figures["figures"]["unchanged"] != (BUFFER if turn > 1 else 0):
                raise Wrong(f"{figures}")
            # What is out already is out.
            if swap(node, "out", program.session)[1]["outs"] != turn:
                raise Wrong("it went out twice")
            text = subprocess.run(
                [AVIARY, "ps", "--server", node.address], capture_output=True, text=True, check=True
            ).stdout
            if f"session {program.session} is swapped out: {BUFFER} bytes" not in text:
                raise Wrong(text)
            if turn == 2 and swap(node, "in", program.session)[0]:
                raise Wrong(f"not swapped in: {program.report()}")
            report = runs(program)
            # The node hears of it a moment later. The host memory stays for the next time, and is charged.
            wait_until(HANG, "it is back", lambda: keeps(program) == BUFFER)
            if report["server"] != server or program.report()["server"] != server or host_swap(node) != (BUFFER, BUFFER):
                raise Wrong(f"it is not as it was: {program.report()}, {host_swap(node)}")
            text = subprocess.run([AVIARY, "ps", "--server", node.address], capture_output=True, text=True, check=True).stdout
            if f"session {program.session} keeps {BUFFER} bytes of host memory" not in text:
                raise Wrong(text)
        program.end()
        nothing_is_left(node, "after a swap")


def keeps(program):
    """Bytes of host memory that a session which is in keeps for the next time."""
    swapped = (program.report() or {}).get("swapped", {"place": "in"})
    return swapped.get("kept", 0) if swapped["place"] == "in" else None


def host_memory_that_is_kept_is_given_to_who_needs_it(tools):
    """To another session that leaves, and to one that is parked."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"parked_memory = {2 * BUFFER}\n")
        file.flush()
        for way in ("swap", "park", "own"):
            # Of the tenant, or of the node.
            options = ("--config", file.name) if way != "swap" else ("--limit", f"host_swap={BUFFER * 3 // 2}")
            with node_and_guests(tools, *options) as (node, environment):
                programs = [Told(tools, node, environment) for _ in range(2)]
                for program in programs if way == "park" else programs[:1]:
                    swap_out(node, program.session)
                    runs_beside(program)
                    wait_until(HANG, "it is back", lambda p=program: keeps(p) == BUFFER)
                if way == "swap":
                    swap_out(node, programs[1].session)
                    if host_swap(node) != (BUFFER, BUFFER) or keeps(programs[0]) != 0:
                        raise Wrong(f"{host_swap(node)}, {programs[0].report()}")
                else:
                    park(node, programs[0].session)
                    wait_until(HANG, "nothing is kept", lambda: not keeps(programs[way != "own"]))
                for program in programs:
                    runs_beside(program)
                    program.end()
                nothing_is_left(node, way)


def runs_beside(program):
    """As `runs`, where others have memory, too."""
    program.calls()
    if "parked" in program.report():
        raise Wrong(f"it does not run: {program.report()}")


def session_that_is_out_does_not_move_and_one_that_moved_swaps(tools):
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        swap_out(node, program.session)
        for word in ("park", "migrate"):
            status, answer = command(node, word, program.session, "--wait", 0)
            if status != 1 or "swapped out" not in answer["refused"]["reason"]:
                raise Wrong(f"{word}: {answer}")
        runs(program)
        if command(node, "migrate", program.session)[0]:
            raise Wrong("it did not move")
        swap_out(node, program.session)
        runs(program)
        park(node, program.session)
        status, answer = swap(node, "out", program.session, "--wait", 0)
        if status != 1 or "parked" not in answer["refused"]:
            raise Wrong(str(answer))
        program.calls()
        program.end()
        nothing_is_left(node, "after a swap")


def swap_is_refused_without_host_memory(tools):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"parked_memory = {BUFFER - 1}\n")
        file.flush()
        for options in (("--limit", f"host_swap={BUFFER - 1}"), ("--config", file.name)):
            with node_and_guests(tools, *options) as (node, environment):
                program = Told(tools, node, environment)
                status, answer = swap(node, "out", program.session, "--wait", 0.2)
                if status != 1 or answer["place"] != "in" or f"no room for {BUFFER} bytes" not in answer["refused"]:
                    raise Wrong(f"{options}: {answer}")
                runs(program)
                program.end()
                nothing_is_left(node, str(options))


def program_without_shared_memory_is_refused_and_goes_on(tools):
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment | {"AVIARY_TRANSPORT": "stream"})
        status, answer = swap(node, "out", program.session, "--wait", 0)
        if status != 1 or answer["place"] != "in" or "shares no memory" not in answer["refused"]:
            raise Wrong(f"{status}: {answer}")
        runs(program)
        program.end()
        nothing_is_left(node, "after a refusal")


def processor_time(process):
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def session_that_is_out_uses_no_processor_time(tools):
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        swap_out(node, program.session)
        server = program.report()["server"]
        before = processor_time(server)
        time.sleep(1)
        if processor_time(server) - before > IDLE_TICKS:
            raise Wrong(f"{processor_time(server) - before} ticks of processor time in a second")
        runs(program)
        program.end()
        nothing_is_left(node, "after a swap")


def of_one(node):
    """The accounts are those of one program that has its memory."""
    return host_swap(node) == (0, 0) and tenant_used(node)[0] < 2 * HOLDS_BYTES


def death_while_memory_is_out_loses_that_session_alone(tools):
    with node_and_guests(tools) as (node, environment):
        other = Told(tools, node, environment)
        for victim in ("server", "program"):
            program = Told(tools, node, environment)
            swap_out(node, program.session)
            report = program.report()
            os.kill(report["server"] if victim == "server" else program.process.pid, signal.SIGKILL)
            if victim == "server":
                program.is_lost()
            else:
                program.end()
            wait_until(HANG, "the other one is alone", lambda: len(sessions(node)) == 1)
            wait_until(HANG, "its accounts are settled", lambda: of_one(node))
            if alive(report["server"]):
                wait_until(HANG, "its API server ends", lambda s=report["server"]: not alive(s))
            runs(other)
        other.end()
        nothing_is_left(node, "after deaths")


def death_on_the_way_loses_that_session_alone(tools):
    with node_and_guests(tools) as (node, environment):
        other = Told(tools, node, environment)
        for way in ("going out", "coming in"):
            program = Told(tools, node, environment)
            server = program.report()["server"]
            if way == "coming in":
                swap_out(node, program.session)
            os.kill(server, signal.SIGSTOP)
            status, answer = swap(node, "out" if way == "going out" else "in", program.session, "--wait", 0)
            if status != 1 or answer["place"] != way:
                raise Wrong(f"{way}: {answer}")
            os.kill(server, signal.SIGKILL)
            program.is_lost()
            wait_until(HANG, "its accounts are settled", lambda: of_one(node))
            runs(other)
        other.end()
        nothing_is_left(node, "after deaths on the way")


def death_of_the_node_ends_a_session_whose_memory_is_out(tools):
    with node_and_guests(tools) as (node, environment):
        program = Told(tools, node, environment)
        swap_out(node, program.session)
        left = node.kill()
        program.is_lost()
        wait_until(HANG, "its API servers end", lambda: not any(map(alive, left)))
        node.start()


class Relayed(Told):
    how = "relayed"


def thread_begins_in_place_of_one_whose_last_call_waits_for_the_memory(tools):
    """At the limit of threads: the session goes on, although the thread that has ended is still there while the memory is out."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"[tenants.relaying]\nusers = [{os.getuid()}]\nthreads = 2\n")
        file.flush()
        with node_and_guests(tools, "--config", file.name) as (node, environment):
            program = Relayed(tools, node, environment)
            program.calls()
            for _ in range(3):
                swap_out(node, program.session)
                program.calls()
            program.end()
            nothing_is_left(node, "after threads")


class Small:
    """A node whose device "crowded" has little memory, and programs that want more of it."""

    def __init__(self, tools, directory, times, keys, device_keys, extra):
        self.tools, self.file = tools, Path(directory) / "memory"
        Path(directory).chmod(0o755)
        self.file.touch()
        self.file.chmod(0o666)
        self.config = Path(directory) / "node.toml"
        self.config.write_text(
            f'{keys}[devices."crowded"]\nmemory = {MEMORY}\noversubscribe = {times}\n{device_keys}[sandbox]\ndevices = ["{self.file}"]\n',
            encoding="utf-8",
        )
        self.environment = {**tools.testapi, "TESTAPI_MEMORY": f"{self.file}:{MEMORY}", **extra}

    def most(self):
        """Bytes that the device has had at a time, as the library counts them."""
        return struct.unpack_from("<Q", self.file.read_bytes(), PROCESSES * 8)[0]

    def start(self, guests, *arguments):
        return subprocess.Popen(
            [self.tools.program("crowd"), *map(str, (BUFFERS, BYTES, *arguments))], env=guests, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )


@contextlib.contextmanager
def small_device(tools, times, keys="", device_keys="", **extra):
    """`keys`: lines of node.toml before its tables; `extra`: of the environment of its API servers."""
    with tempfile.TemporaryDirectory(prefix="aviary-small-") as directory:
        small = Small(tools, directory, times, keys, device_keys, extra)
        with (
            running(small.environment, "--config", small.config, "--log-level", "debug") as node,
            guest_environment("testapi", small.environment, node.address) as guests,
        ):
            yield small, node, guests


def memory_that_is_kept_against_the_report_ends_its_api_server(tools):
    """The device's own library is asked who has memory there. What one has besides what its sessions allocate is bounded."""
    has = BUFFERS * BYTES
    for beside, extra in ((has - 1, {}), (has - 1, {"TESTAPI_KEEPS": "1"}), (2 * has, {"TESTAPI_KEEPS": "1"})):
        with small_device(tools, 4.0, device_keys=f"beside = {beside}\n", **extra) as (small, node, guests):
            program = small.start(guests, 1, 600_000_000)
            wait_until(HANG, "it has its memory", lambda n=node: sum(all_of for _, all_of in resident(n).values()) == has)
            swap_out(node, next(iter(resident(node))))
            log = lambda n=node: n.log.read_text()  # noqa: E731
            if extra and beside < has:
                wait_until(HANG, "it is found", lambda log=log: "as its driver says" in log())
                wait_until(HANG, "it is ended", lambda n=node: not sessions(n))
                if f"bytes of \"crowded\", as its driver says, and may have {beside}" not in log():
                    raise Wrong(log()[-1500:])
            else:
                wait_until(HANG, "it is compared", lambda log=log: "API servers have of devices was compared" in log())
                if not sessions(node) or "as its driver says" in log():
                    raise Wrong(log()[-1500:])
            program.kill()
            program.communicate()
            nothing_is_left(node, "after a look")


def resident(node):
    """By session: bytes on the device, and bytes that it has in all."""
    counters = [(session["session"], session["counters"]) for session in sessions(node)]
    of = lambda all_of, name: all_of.get(f"{name}@crowded.used", 0)  # noqa: E731
    return {session: (of(all_of, "resident_memory"), of(all_of, "device_memory")) for session, all_of in counters}


def ended(program):
    text, errors = program.communicate(timeout=HANG)
    wrong = [line for line in text.splitlines() if not line.startswith("ok")]
    if program.returncode or wrong:
        raise Wrong(f"status {program.returncode}: {wrong[:5]} {errors[-500:]}")


def programs_with_more_memory_than_the_device_are_right(tools):
    with small_device(tools, 4.0) as (small, node, guests):
        programs = [small.start(guests, 100, 2000) for _ in range(4)]
        looks = 0
        while any(program.poll() is None for program in programs):
            shown = resident(node)
            if sum(there for there, _ in shown.values()) > MEMORY:
                raise Wrong(f"more than the device has: {shown}")
            looks += 1
        for program in programs:
            ended(program)
        node.settle()
        log = node.log.read_text()
        if not 2 * BUFFERS * BYTES > MEMORY >= small.most() > BUFFERS * BYTES // 2:
            raise Wrong(f"the library has counted {small.most()} bytes at a time")
        nothing_is_left(node, "after a crowd")
        if host_swap(node) != (0, 0) or "its API server ended: signal" in log:
            raise Wrong(f"{host_swap(node)}: {log[-1500:]}")
        if "comes in while others still leave" not in log:
            raise Wrong("no exchange of memory was overlapped")
        tools.figures.append({"case": "crowd", "looks": looks})


def left(node):
    """Bytes that left devices, of each eviction."""
    return [int(found) for found in re.findall(r"swapped out: .* (\d+) bytes have left", node.log.read_text())]


def no_more_leaves_than_the_other_program_needs(tools):
    """Two programs work on a device that has room for one and a part of the other."""
    with small_device(tools, 4.0) as (small, node, guests):
        programs = [small.start(guests, 100, 2000) for _ in range(2)]
        for program in programs:
            ended(program)
        node.settle()
        whole, parts = BUFFERS * BYTES, left(node)
        if small.most() > MEMORY or not any(part < whole for part in parts):
            raise Wrong(f"{small.most()} bytes at a time; {parts} of {whole} have left")
        nothing_is_left(node, "after parts")
        if host_swap(node) != (0, 0):
            raise Wrong(f"{host_swap(node)}")
        tools.figures.append({"case": "part", "evictions": len(parts), "in part": sum(part < whole for part in parts)})


def allocation_beyond_what_may_be_had_is_refused_at_once(tools):
    with small_device(tools, 1.5) as (small, node, guests):
        first = small.start(guests, 1, 600_000_000)
        wait_until(HANG, "the first has its memory", lambda: sum(all_of for _, all_of in resident(node).values()) == BUFFERS * BYTES)
        second = small.start(guests, 1)
        text, _ = second.communicate(timeout=HANG)
        refused = (MEMORY * 3 // 2 - BUFFERS * BYTES) // BYTES + 1
        if second.returncode != 4 or f"refused {refused} of {BUFFERS}" not in text:
            raise Wrong(f"status {second.returncode}: {text[-200:]}, not the {refused}th")
        first.kill()
        first.communicate()
        nothing_is_left(node, "after a refusal")


def host_without_room_for_both_keeps_the_one_that_waits_waiting(tools):
    """Who is in cannot leave, as the host has no room for its memory beside that of the one that is out; the log says so."""
    with small_device(tools, 4.0, f"parked_memory = {BUFFERS * BYTES * 3 // 2}\n") as (small, node, guests):
        out = small.start(guests, 20, 50_000)
        wait_until(HANG, "it has its memory", lambda: sum(all_of for _, all_of in resident(node).values()) == BUFFERS * BYTES)
        there = small.start(guests, 40, 100_000)
        reason = "keeps its device memory (no room for"
        wait_until(HANG, "the log names the reason", lambda: reason in node.log.read_text())
        ended(there)
        ended(out)
        nothing_is_left(node, "after a swap")


def death_in_a_crowd_leaves_the_others_right(tools):
    with small_device(tools, 8.0) as (small, node, guests):
        programs = [small.start(guests, 150, 1000) for _ in range(4)]
        for number in range(6):
            victims = [session for session in sessions(node) if session["guest"] != programs[0].pid]
            if victims:
                victim = victims[number % len(victims)]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim["server"] if number % 2 else victim["guest"], signal.SIGKILL)
            time.sleep(0.05)
        ended(programs[0])
        for program in programs[1:]:
            program.communicate(timeout=HANG)
        if small.most() > MEMORY:
            raise Wrong(f"the library has counted {small.most()} bytes at a time")
        nothing_is_left(node, "after deaths in a crowd")
        if host_swap(node) != (0, 0):
            raise Wrong(f"{host_swap(node)}")


ALL = {
    "swap": session_stays_in_its_process_and_its_call_brings_its_memory_back,
    "swap-kept": host_memory_that_is_kept_is_given_to_who_needs_it,
    "swap-moves": session_that_is_out_does_not_move_and_one_that_moved_swaps,
    "swap-no-room": swap_is_refused_without_host_memory,
    "swap-stream": program_without_shared_memory_is_refused_and_goes_on,
    "swap-idle": session_that_is_out_uses_no_processor_time,
    "swap-threads": thread_begins_in_place_of_one_whose_last_call_waits_for_the_memory,
    "swap-death": death_while_memory_is_out_loses_that_session_alone,
    "swap-death-on-the-way": death_on_the_way_loses_that_session_alone,
    "swap-node-death": death_of_the_node_ends_a_session_whose_memory_is_out,
    "swap-crowd": programs_with_more_memory_than_the_device_are_right,
    "swap-part": no_more_leaves_than_the_other_program_needs,
    "swap-refused": allocation_beyond_what_may_be_had_is_refused_at_once,
    "swap-host-memory": host_without_room_for_both_keeps_the_one_that_waits_waiting,
    "swap-untrue": memory_that_is_kept_against_the_report_ends_its_api_server,
    "swap-crowd-death": death_in_a_crowd_leaves_the_others_right,
}
