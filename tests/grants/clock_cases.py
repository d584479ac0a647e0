"""Clocks that somebody sets, and nodes whose clocks differ: a grant lasts by the clock of its own node."""

from granting import ended, granting, guest, holding
from harness.clock import YEAR, Clock
from harness.process import HANG, Wrong, wait_until
from via_cases import Pair

HOUR = 3600


def lasts(node, name, least, most):
    """What the node tells of a grant's end, in seconds and in words."""
    left = node.grants()[name]["expires_in"]
    if not least <= left <= most:
        raise Wrong(f"it ends in {left} s, not in {least} to {most}")
    if "expires in" not in node.command("grant", "list"):
        raise Wrong(node.command("grant", "list"))


def is_set(tools):
    """Back, a grant lasts longer; ahead, it ends, with its sessions: within half a minute, when the node looks."""
    clock = Clock(tools.directory, "set")
    with granting(tools, environment=clock.environment()) as node:
        node.grant("brief", "--expires", f"{2 * HOUR}s")
        node.grant("lasting")
        lasts(node, "brief", 2 * HOUR - HANG, 2 * HOUR)
        clock.set(-HOUR)
        lasts(node, "brief", 3 * HOUR - HANG, 3 * HOUR)
        clock.set(HOUR)
        lasts(node, "brief", HOUR - HANG, HOUR)
        with holding(node, node.socket_of("lasting")) as (other,), holding(node, node.socket_of("brief")) as (program,):
            clock.set(2 * HOUR + 1)
            if program.wait(timeout=HANG) != 3:
                raise Wrong("the session outlives its grant")
            if other.poll() is not None:
                raise Wrong("a grant without an end has ended")
        if list(node.grants()) != ["lasting"]:
            raise Wrong(f"{node.grants()}")


def differ(tools):
    """Nodes of which one is ten years behind and one ten years ahead, with certificates of a day: only SHA-256 counts, and each node's
    grant ends by its own clock."""
    behind, ahead = Clock(tools.directory, "behind", -10 * YEAR), Clock(tools.directory, "ahead", 10 * YEAR)
    both = Pair(tools, far=behind.environment(), near=ahead.environment(), days=1)
    try:
        both.grant("pod", "--limit", "device_memory=2M", "--expires", f"{HOUR}s", near=("--expires", f"{2 * HOUR}s"))
        lasts(both.near, "pod", 2 * HOUR - HANG, 2 * HOUR)
        lasts(both.far, "pod", HOUR - HANG, HOUR)
        status, said = ended(guest(both.near, both.near.socket_of("pod"), tools.program("quota"), 2 << 20))
        if status:
            raise Wrong(said)
        with holding(both.near, both.near.socket_of("pod")) as (program,):
            wait_until(HANG, "it has a session", lambda: both.far.sessions("pod"))
            behind.set(HOUR + 1 - 10 * YEAR)
            if program.wait(timeout=HANG) != 3:
                raise Wrong("the session outlives the grant of the node that has the device")
        if "pod" in both.far.grants() or "pod" not in both.near.grants():
            raise Wrong(f"{both.far.grants()} {both.near.grants()}")
        both.near.stop()
        both.far.stop()
    finally:
        both.near.discard()
        both.far.discard()


CASES = {"a clock is set": is_set, "clocks differ": differ}
