"""Programs that mean harm, whose sessions move after every few calls. What becomes of them does not matter: another program of
the same node, which moves as often, notices nothing, and the node stands."""

import contextlib
import os
import re
import signal
import subprocess

from harness.node import Node, guest_environment
from harness.process import HANG, Wrong, wait_until
from operator_cases import start
from programs import KINDS

EVERY = 7
# Runs of `hostile`, each with another sequence of garbage: some, and many.
SEEDS, MANY_SEEDS = range(1, 5), range(5, 65)
# Ways to do harm of `nuisance`; the sessions of `long` and `queue` seldom get away.
HARM = ("calls", "launches", "frames", "crash", "queue", "long", "sessions")
# Steps of the program beside it.
STEPS = 400
CRASHED = r"panic|signal (?:4|6|7|11)\b|SIG(?:SEGV|ABRT|BUS|ILL)"


@contextlib.contextmanager
def moving_node(tools):
    """A node all of whose sessions move, and the environment of its guests. It stands until the end, and stops politely."""
    every = {"AVIARY_TEST_MOVE_EVERY": str(EVERY)}
    node = Node({**tools.testapi, **every}, "--log-level", "debug")
    try:
        with guest_environment("testapi", tools.testapi, node.address) as environment:
            yield node, environment
            node.settle()
        crashed = re.findall(f".*(?:{CRASHED}).*", node.log.read_text(errors="replace"), re.I)
        if crashed:
            raise Wrong(crashed[0])
        node.stop()
    finally:
        node.discard()


def wander(tools, environment):
    return start(tools.program("wander"), environment, STEPS)


def right(tools, program):
    """Raises if the program beside the other one did not do what it does natively."""
    told, errors = program.communicate(timeout=HANG * 8)
    native = subprocess.run(
        [tools.program("wander"), str(STEPS)], env={**os.environ, **tools.testapi}, capture_output=True, text=True, check=False
    )
    if (program.returncode, told) != (native.returncode, native.stdout):
        raise Wrong(f"beside it: {program.returncode} {told} {errors[-500:]}, natively {native.returncode} {native.stdout}")


def moves(node):
    return len(re.findall(KINDS["move"], node.log.read_text(errors="replace")))


def garbage(tools, seeds):
    """Garbage over the memory that is shared with API servers while these move."""
    with moving_node(tools) as (node, environment):
        beside = wander(tools, environment)
        for seed in seeds:
            with start(tools.program("hostile"), {**environment, "AVIARY_ARENA": "64M"}, seed) as program:
                told, _ = program.communicate(timeout=HANG * 4)
            if not re.search(r"[1-9]\d* shared pages", told):
                raise Wrong(f"seed {seed}: it did not attach: {told}")
        right(tools, beside)
        if not moves(node):
            raise Wrong("nothing was moved")


def harm(tools, kind):
    with moving_node(tools) as (node, environment):
        with start(tools.program("nuisance"), {**environment, "AVIARY_ARENA": "64M"}, kind, 1) as program:
            try:
                beside = wander(tools, environment)
                right(tools, beside)
                if program.poll() is not None:
                    raise Wrong(f"{kind} ended with {program.returncode}: {program.communicate()}")
            finally:
                # Its children end with it.
                with contextlib.suppress(ProcessLookupError):
                    program.send_signal(signal.SIGKILL)
        wait_until(HANG, "sessions have moved", lambda: moves(node))


LONG = {
    "hostile-garbage": lambda tools: garbage(tools, SEEDS),
    "hostile-much-garbage": lambda tools: garbage(tools, MANY_SEEDS),
    **{f"hostile-{kind}": lambda tools, k=kind: harm(tools, k) for kind in HARM},
}
