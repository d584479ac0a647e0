"""Parks of sessions whose programs were told something that may be otherwise in another process (`same`): another process makes
them anew first, and what differs on the way back is tried again.

The numbers of places are those of a file, so that a test decides what the next process will answer."""

import contextlib
import os
import tempfile
from pathlib import Path

from fault_cases import kill
from harness.process import HANG, Wrong, alive, wait_until
from operator_cases import node_and_guests, tenant_used
from parking_cases import HaltedPark, Told, command, goes_on_after, is_parked, nothing_is_left, park, runs

DIFFERS = "ta_buffer_place, repeated in the new API server, returns ["
# Deaths while a session is rehearsed, and where it is then. Without the old API server it is parked whatever the rehearsal says.
FATES = {"old": "parked", "new": "runs"}


class Placed(Told):
    """A program that knows its buffer's place."""

    how = "placed"


@contextlib.contextmanager
def places_and_guests(tools):
    """A function that decides about places from now on, a node, and the environment of guests of testapi."""
    with tempfile.TemporaryDirectory(prefix="aviary-places-") as folder:
        file = Path(folder) / "places"
        written = Path(folder) / "written"

        def are(number):
            written.write_text(f"{number}\n", encoding="ascii")
            os.replace(written, file)

        are(0)
        tools.testapi["TESTAPI_PLACES"] = str(file)
        try:
            # In a sandbox an API server sees no such file.
            with node_and_guests(tools, "--sandbox", "off") as (node, environment):
                yield are, node, environment
        finally:
            del tools.testapi["TESTAPI_PLACES"]


def equal_places_park(tools):
    with places_and_guests(tools) as (_, node, environment):
        program = Placed(tools, node, environment)
        for _ in range(5):
            before = program.report()["server"]
            figures = park(node, program.session)
            is_parked(program, figures["bytes"])
            if tenant_used(node) != (0, 0) or alive(before) or not figures["rebuild_us"]:
                raise Wrong(f"{figures}: used and held {tenant_used(node)}")
            runs(program)
        program.end()
        nothing_is_left(node, "at the end")


def other_places_stay(tools):
    """A rehearsal that differs is no loss: the session goes on where it is, and parks once another process agrees."""
    with places_and_guests(tools) as (are, node, environment):
        program = Placed(tools, node, environment)
        server = program.report()["server"]
        are(1)
        status, answer = command(node, "park", program.session, "--wait", "0")
        if status != 1 or DIFFERS not in answer["refused"]["reason"] or not answer["refused"]["lasting"]:
            raise Wrong(str(answer))
        are(0)
        if runs(program)["server"] != server:
            raise Wrong(f"API server {server} before, {program.report()}")
        park(node, program.session)
        is_parked(program)
        runs(program)
        program.end()
        nothing_is_left(node, "at the end")


def other_places_are_tried_again(tools):
    """A process in which the session comes out otherwise on its way back is not the last one."""
    with places_and_guests(tools) as (are, node, environment):
        program = Placed(tools, node, environment)
        park(node, program.session)
        are(1)
        program.tell()
        wait_until(HANG, "it differs", lambda: DIFFERS in program.report()["parked"]["state"])
        are(0)
        if program.answer() != ["called"]:
            raise Wrong(f"the call that waited: {node.log.read_text()[-1500:]}")
        runs(program)
        program.end()
        nothing_is_left(node, "at the end")


def places_that_never_come_back_lose_the_device(tools):
    with places_and_guests(tools) as (are, node, environment):
        program = Placed(tools, node, environment)
        park(node, program.session)
        are(1)
        program.is_lost()
        if f"cannot continue: {DIFFERS}" not in node.log.read_text():
            raise Wrong(node.log.read_text()[-1500:])
        nothing_is_left(node, "at the end")


def dies_while_rehearsing(state):
    """The old API server or the one that rehearses dies before, during or after the rehearsal."""
    def case(tools):
        with places_and_guests(tools) as (_, node, environment):
            for victim, fate in FATES.items():
                program = Placed(tools, node, environment)
                move = HaltedPark(node, program.session, state)
                kill(move.old if victim == "old" else move.new)
                move.release()
                goes_on_after(move, node, program, fate, victim)
                nothing_is_left(node, f"{state}, {victim}")
    return case


def failed_rehearsal_without_a_way_back_parks(tools):
    """The old API server has ended, and the rehearsal differs: the state is all there is, and another process may agree."""
    with places_and_guests(tools) as (are, node, environment):
        program = Placed(tools, node, environment)
        move = HaltedPark(node, program.session, "captured")
        are(1)
        kill(move.old)
        move.release()
        wait_until(HANG, "the attempt is over", lambda: "underway" not in move.status())
        is_parked(program)
        are(0)
        runs(program)
        program.end()
        nothing_is_left(node, "at the end")


ALL = {
    "rehearse-equal": equal_places_park,
    "rehearse-differs": other_places_stay,
    "rehearse-again": other_places_are_tried_again,
    "rehearse-lost": places_that_never_come_back_lose_the_device,
    **{f"rehearse-dies-{state}": dies_while_rehearsing(state) for state in ("captured", "handed", "rehearsed")},
    "rehearse-alone": failed_rehearsal_without_a_way_back_parks,
}
