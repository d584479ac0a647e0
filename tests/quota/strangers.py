"""User ids that nobody has named: however many there are, they are one tenant, and keep nobody away who is configured."""

import collections
import contextlib
import os

from takers import Taker, accounts, check, guests_environment, serving, taking

OWN = os.getuid()
LIMIT = 100_000
PIECE = 5_000
MOST = LIMIT // PIECE
# As a user's subordinate ids.
FIRST, IDS = 150_000, 200
RANGE = 50
CONFIGURED, FIRST_CONFIGURED = 10, 140_000


def configuration():
    tenants = [f"[tenants.t{number}]\nusers = [{FIRST_CONFIGURED + number}]" for number in range(CONFIGURED)]
    first = 1_900_300_000
    top = [f'api_server_users = "{first}-{first + RANGE - 1}"', "attach_rate = 0", f"[limits]\ndevice_memory = {LIMIT}"]
    return "\n".join(top + tenants) + "\n"


def many(tools, unknown, alive, look):
    """Ids attach one after the other, each takes what it gets, and `alive` of them are there at a time. `look` is shown what these
    hold. In between each of the configured tenants attaches for the first time."""
    with serving(tools, configuration(), unknown=f'unknown_users = "{unknown}"\n') as node, contextlib.ExitStack() as stack:
        environment = guests_environment(node)
        there = collections.deque()
        for number in range(IDS):
            if len(there) == alive:
                there.popleft()[0].end()
            taker = Taker(tools, environment, PIECE, user=FIRST + number)
            if taker.attached:
                there.append((taker, taker.tell("t")))
                stack.callback(taker.end)
            else:
                taker.end()
            look(node, [held for _, held in there])
            place, rest = divmod(number, IDS // CONFIGURED)
            if rest == IDS // CONFIGURED - 1:
                with taking(tools, environment, PIECE, user=FIRST_CONFIGURED + place) as configured:
                    check(configured.tell("t") == MOST, f"tenant t{place} has its own limit after {number + 1} ids")
        check(there, "the last ids are there")


def ids_share(tools):
    """They are one tenant together: never more than one quota."""
    if OWN:
        return

    def look(node, held):
        check(sum(held) <= MOST, f"{len(held)} ids hold {sum(held)} pieces of {MOST}")
        check(accounts(node, "others")["used"] <= LIMIT, f"{accounts(node, 'others')}")

    many(tools, "share", 12, look)


def ids_are_apart(tools):
    """Tenants of their own, where the operator wants that: as many as there are user ids for, beside the configured ones."""
    if OWN:
        return
    most = 0

    def look(_node, held):
        nonlocal most
        most = max(most, len(held))
        check(all(one == MOST for one in held), f"each has its limit: {held}")

    many(tools, "separate", RANGE, look)
    check(RANGE - CONFIGURED - 2 <= most < RANGE, f"{most} ids are there at a time, of a range of {RANGE}")


CASES = {function.__name__: function for function in (ids_share, ids_are_apart)}
