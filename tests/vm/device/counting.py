"""Counts that do not depend on how fast a machine is: traps of a call, bytes copied of a buffer."""

import re

from harness.process import HANG, Wrong, wait_until

# A call while both sides are awake needs no kick, no sleep, no request and no system call. On a machine with few processors
# somebody else wants one now and then, and a thread that waits longer than a moment goes to sleep: so of many short rounds the
# quietest are counted, 20,000 calls together, and five events are left to each of them. One per call would be 200 times that.
ROUNDS, CALLS, QUIETEST = 200, 1000, 20
INTERRUPTIONS = 5 * QUIETEST
# How often it is counted until one count is small enough: on a machine with other work no round may be quiet in one of them.
TRIES = 5
LARGE = 64 << 20


def in_one_of_several_tries(count):
    """Counts again until it raises nothing; the last try's error counts."""
    for _ in range(TRIES - 1):
        try:
            return count()
        except Wrong:
            pass
    return count()


def calls_without_traps(world):
    """Synchronous calls while both sides are awake."""
    vm = world.one()
    in_one_of_several_tries(lambda: count_traps(world, vm))


def count_traps(world, vm):
    lines = vm.expect(f"/opt/testapi/counts {ROUNDS} {CALLS}", 240).split("\n")
    rounds = [tuple(map(int, line.split())) for line in lines if line]
    busy, idle = rounds[:-5], rounds[-5:]
    quietest = [sum(column) for column in zip(*sorted(busy, key=sum)[:QUIETEST])]
    total = [sum(column) for column in zip(*busy)]
    world.log(f"kicks, sleeps, requests: {quietest} of {QUIETEST * CALLS} calls, {total} of all {ROUNDS * CALLS}; a call after a second of sleep: {idle}")
    if len(busy) != ROUNDS or sum(quietest) > INTERRUPTIONS:
        raise Wrong(f"{QUIETEST * CALLS} calls had kicks, sleeps, requests {quietest}: at most {INTERRUPTIONS} are expected")
    if sorted(kicks for kicks, _, _ in idle)[2] != 1 or any(requests for _, _, requests in idle):
        raise Wrong(f"to wake a sleeping server: kicks, sleeps, requests {idle}, expected one kick")


def calls_without_system_calls(world):
    """The same, seen by strace: the driver counts only its own. strace holds the calls that mark a round for so long that the server
    goes to sleep: a round begins with one system call, to wake it."""
    vm = world.one()
    in_one_of_several_tries(lambda: count_system_calls(world, vm))


def count_system_calls(world, vm):
    vm.expect(f"strace -f -o /tmp/strace /opt/testapi/counts between {ROUNDS} {CALLS}", 240)
    text = vm.expect("cat /tmp/strace; rm /tmp/strace")
    counts = []
    for part in re.findall(r"close\(-77\)[^\n]*\n(.*?)[^\n]*close\(-78\)", text, re.S):
        counts.append(len(part.splitlines()))
    quietest, total = sum(sorted(counts)[:QUIETEST]), sum(counts)
    world.log(f"system calls: {quietest} of {QUIETEST * CALLS} calls, {total} of all {ROUNDS * CALLS}")
    if len(counts) != ROUNDS or quietest > INTERRUPTIONS:
        raise Wrong(f"system calls of {QUIETEST * CALLS} calls: {quietest}: at most {INTERRUPTIONS} are expected")


def large_buffers_are_not_copied(world):
    """A large write and read: the API server sees the application's own pages."""
    vm = world.one()
    vm.expect("rm -f /tmp/go /tmp/end /tmp/said")
    vm.expect(f"AVIARY_PIN=0 /opt/testapi/pinned_cl {LARGE} /tmp/go /tmp/end >/tmp/said 2>&1 &")
    wait_until(HANG, "pinned_cl attaches", lambda: "attached" in vm.expect("cat /tmp/said"))
    before = world.wait_for_session(program="pinned_cl")["counters"]
    vm.expect("touch /tmp/go")
    wait_until(HANG, "pinned_cl writes", lambda: "written" in vm.expect("cat /tmp/said"))
    after = world.wait_for_session(program="pinned_cl")["counters"]
    pinned, copied = (after.get(name, 0) - before.get(name, 0) for name in ("bytes_pinned", "bytes_copied"))
    world.log(f"{LARGE} bytes there and back: {pinned} pinned, {copied} copied")
    vm.expect("touch /tmp/end")
    wait_until(HANG, "the bytes are compared", lambda: "qual" in vm.expect("cat /tmp/said") or "different" in vm.expect("cat /tmp/said"))
    said = vm.expect("cat /tmp/said")
    if pinned < 2 * LARGE or copied or "equal" not in said:
        raise Wrong(f"{LARGE} bytes there and back: {pinned} pinned, {copied} copied; {said}")
    vm.wait_until_nothing_is_left()
