"""Processes that are killed while the memory of a session goes out, is out, and comes in, of every API whose memory can leave: another
program of the node notices nothing, and no byte of an account is off.

A session is on its way for as long as its API server is stopped. Half of the kills come then, and half at a random moment after it
goes on."""

import contextlib
import os
import random
import signal
import subprocess
import time

from harness.node import running
from harness.process import AVIARY, HANG, Wrong, alive, wait_until
from operator_cases import node_and_guests, sessions, tenant_used
from parking_cases import Told, nothing_is_left
from swap_cases import host_swap, keeps, swap, swap_out
from cuda_cases import built
import opencl_swap_cases

# Where the memory is, and the order that brings it there.
STATES = {"going out": "out", "out": None, "coming in": "in"}
VICTIMS = ("server", "program")
# Kills of each state, in ./x test and with --long. CUDA's program takes seconds to begin.
SAMPLE, MANY = {"testapi": 4, "opencl": 4, "cuda": 2}, 200
# Seconds within which a session that goes on is killed.
SOON = 0.01


class TestApi(Told):
    api = "testapi"

    @staticmethod
    def node(tools):
        return node_and_guests(tools)

    def __init__(self, tools, node, environment):
        self.tools = tools
        super().__init__(tools, node, environment)

    def works(self):
        self.calls()


class OpenCl(opencl_swap_cases.Crowd):
    api = "opencl"

    @staticmethod
    def node(tools):
        return opencl_swap_cases.node_and_guests(tools)

    def __init__(self, _, node, environment):
        super().__init__(node, environment)


class Cuda:
    """`evicted`, beside which another one runs natively."""

    api = "cuda"

    @staticmethod
    @contextlib.contextmanager
    def node(tools):
        environment = {"LD_LIBRARY_PATH": str(built(tools) / "driver"), "EXPECT_SCRUBBED": "1"}
        with running(environment) as node:
            yield node, environment

    def __init__(self, tools, node, environment):
        program = built(tools) / "evicted"
        command = [AVIARY, "run", "--api", "cuda", "--server", node.address, "--", program]
        pipes = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        before = {session["session"] for session in sessions(node, self.api)}
        self.node = node
        self.native = subprocess.Popen([program], env=environment, **pipes)
        self.process = subprocess.Popen(command, **pipes)
        self.is_right()
        self.session = next(s["session"] for s in sessions(node, self.api) if s["session"] not in before)

    def is_right(self):
        expected, found = self.native.stdout.readline(), self.process.stdout.readline()
        if found != expected:
            raise Wrong(f"{found!r} instead of {expected!r}: {self.node.log.read_text()[-1500:]}")

    def report(self):
        return next((s for s in sessions(self.node, self.api) if s["session"] == self.session), None)

    def works(self):
        for process in (self.native, self.process):
            process.stdin.write("\n")
            process.stdin.flush()
        self.is_right()

    def is_lost(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer.startswith("FAIL") or self.process.wait(timeout=HANG) != 1:
            raise Wrong(f"it says {answer!r}")
        self.end()

    def end(self):
        # The child of `aviary run` is the program: it takes its place.
        for process in (self.native, self.process):
            process.kill()
            process.communicate()


def killed(program, victim, state, is_sure, choose):
    """Brings the session of a program into a state, and kills one of its processes there, or soon after."""
    node, server = program.node, program.report()["server"]
    order = STATES[state]
    if order != "out":
        swap_out(node, program.session)
    if order:
        os.kill(server, signal.SIGSTOP)
        status, answer = swap(node, order, program.session, "--wait", 0)
        if status != 1 or answer["place"] != state:
            raise Wrong(f"{state}: {answer}")
    process = server if victim == "server" else program.process.pid
    if not is_sure:
        os.kill(server, signal.SIGCONT)
        time.sleep(choose.random() * SOON)
    os.kill(process, signal.SIGKILL)
    if victim == "program":
        # It may have ended already.
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)
        program.end()
    else:
        program.is_lost()
    return server


def accounts(node):
    return tenant_used(node), host_swap(node)


def kills(tools, kind, count):
    choose = random.Random(20261129)
    with kind.node(tools) as (node, environment):
        other = kind(tools, node, environment)
        # What it keeps of the host's memory is the same from then on.
        swap_out(node, other.session)
        other.works()
        wait_until(HANG, "the other one is back", lambda: keeps(other) is not None)
        expected = accounts(node)
        for number in range(count):
            for state in STATES:
                victim, is_sure = VICTIMS[number % 2], (number + number // 2) % 2 == 0
                server = killed(kind(tools, node, environment), victim, state, is_sure, choose)
                where = f"{state}: the {victim} killed, the {number}th"
                wait_until(HANG, f"the other one is alone ({where})", lambda: len(sessions(node, kind.api)) == 1)
                wait_until(HANG, f"its API server ends ({where})", lambda s=server: not alive(s))
                wait_until(HANG, f"accounts are {expected} ({where})", lambda: accounts(node) == expected)
                other.works()
        if keeps(other) is None or (report := other.report())["swapped"]["outs"] != 1:
            raise Wrong(f"the other one has left: {report}")
        other.end()
        nothing_is_left(node, "after kills")
        tools.figures.append({"case": f"swap-kills-{kind.api}", "kills": count * len(STATES)})


KINDS = (TestApi, Cuda, OpenCl)
ALL = {f"swap-kills-{kind.api}": lambda tools, k=kind: kills(tools, k, SAMPLE[k.api]) for kind in KINDS}
LONG = {f"swap-many-kills-{kind.api}": lambda tools, k=kind: kills(tools, k, MANY) for kind in KINDS}
