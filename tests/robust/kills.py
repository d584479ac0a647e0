"""Kills guests, API servers and the node at random points under load, and looks at what is left.

After every kill: guests that depended on the victim end and say so, the others go on and end with right results. How
long the slowest took is a figure (`./x bench kills`). Every so often, when all guests are gone: no process, shared memory, descriptor,
session or file is left.
"""

import collections
import os
import random
import selectors
import signal
import subprocess
import time
from pathlib import Path

from harness.process import HANG, alive, descendants, descriptors, resident_mb, zombies

# Guests at the same time.
GUESTS = 5
# Longest life of a guest that nobody touches, in seconds, which only ends what hangs.
LIFE = 2 * HANG
# Kills between two looks at what is left.
ROUND = 100
# Seconds for which a dead API server may still be given to a guest after the node has reaped it.
GIVEN_LATE = 0.5
KINDS = ["guest"] * 9 + ["server"] * 9 + ["node"] * 2
FINE, ATTACH, LOST = 0, 2, 3


class Guest:
    """One worker process."""

    def __init__(self, process, number, command):
        self.process, self.number, self.command = process, number, command
        self.started = time.monotonic()
        self.watch = os.pidfd_open(process.pid)
        self.server = 0
        self.output = b""
        # Statuses that are no failure, and when it must have ended at the latest.
        self.allowed = {FINE}
        self.deadline = self.started + LIFE
        self.touched_at = None

    def read(self):
        """Takes what it printed, without waiting."""
        try:
            self.output += os.read(self.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        if not self.server and b"\n" in self.output:
            words = self.output.split(b"\n")[0].split()
            if len(words) == 2 and words[0] == b"ready" and words[1].isdigit():
                self.server = int(words[1])

    def touch(self, *allowed):
        """It depends on something that was just killed."""
        self.allowed.update(allowed)
        if self.touched_at is None:
            self.touched_at = time.monotonic()
        self.deadline = min(self.deadline, time.monotonic() + HANG)


class Kills:
    """The state of a run."""

    def __init__(self, node, variants, seed, log):
        self.node, self.variants, self.log = node, variants, log
        self.random = random.Random(seed)
        self.seed = seed
        self.guests = []
        self.selector = selectors.DefaultSelector()
        self.counts = collections.Counter()
        self.slowest = 0.0
        self.numbers = 0
        self.processes = 0
        # API servers of dead guests, of dead nodes, and when they must be gone.
        self.doomed = {}
        self.problems = []
        # Servers that nobody had and that were killed: each may be given to a guest until the node has reaped it.
        self.dying_spares = set()
        self.spare_dies_until = 0.0
        self.start_of = None

    # Guests.

    def start_guest(self):
        self.numbers += 1
        program, environment = self.random.choice(self.variants)
        life = self.random.choice([0, 20, 100, 300, 1000])
        command = [program, str(self.seed * 1000003 + self.numbers), str(life)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        os.set_blocking(process.stdout.fileno(), False)
        guest = Guest(process, self.numbers, command)
        if self.a_spare_dies():
            guest.allowed.update((LOST, ATTACH))
        self.guests.append(guest)
        self.selector.register(guest.watch, selectors.EVENT_READ, guest)

    def a_spare_dies(self):
        """If a guest that starts now may be given an API server that was killed."""
        now = time.monotonic()
        if self.dying_spares:
            self.spare_dies_until = now + GIVEN_LATE
        self.dying_spares = {server for server in self.dying_spares if Path(f"/proc/{server}").exists()}
        return now < self.spare_dies_until

    def problem(self, text):
        self.problems.append(text)
        self.log(f"PROBLEM after {sum(self.kills().values())} kills: {text}")

    def kills(self):
        return {kind: self.counts[kind] for kind in ("guest", "server", "node")}

    def collect(self, seconds):
        """Handles what happens in this time."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            for key, _ in self.selector.select(max(0, left)):
                self.ended(key.data)
            self.look_at_deadlines()
            if left <= 0:
                return

    def ended(self, guest):
        guest.process.wait()
        guest.read()
        self.selector.unregister(guest.watch)
        os.close(guest.watch)
        guest.process.stdout.close()
        self.guests.remove(guest)
        status = guest.process.returncode
        if guest.touched_at is not None:
            self.slowest = max(self.slowest, time.monotonic() - guest.touched_at)
        self.counts[f"ended {status}"] += 1
        if status not in guest.allowed:
            words = guest.output.decode(errors="replace").splitlines()[-1:]
            self.problem(f"guest {guest.command} ended with {status}, allowed {sorted(guest.allowed)}: {words}")

    def look_at_deadlines(self):
        now = time.monotonic()
        for guest in self.guests:
            if now > guest.deadline:
                self.problem(f"guest {guest.command} (server {guest.server}) hangs: {stacks(guest.process.pid)}")
                guest.deadline = now + 3600
                guest.allowed.add(-signal.SIGKILL)
                guest.process.kill()
        for server, deadline in list(self.doomed.items()):
            if not alive(server):
                self.slowest = max(self.slowest, now - (deadline - HANG))
                del self.doomed[server]
            elif now > deadline:
                self.problem(f"API server {server} does not end: {stacks(server)}")
                del self.doomed[server]

    # Killing.

    def kill_one(self):
        kind = self.random.choice(KINDS)
        for guest in self.guests:
            guest.read()
        if kind == "guest":
            self.kill_guest()
        elif kind == "server":
            self.kill_server()
        else:
            self.kill_node()

    def kill_guest(self):
        if not self.guests:
            return
        guest = self.random.choice(self.guests)
        guest.touch(-signal.SIGKILL, *guest.allowed)
        guest.process.kill()
        if guest.server:
            self.doomed[guest.server] = time.monotonic() + HANG
        self.counts["guest"] += 1

    def kill_server(self):
        servers = self.node.servers()
        if not servers:
            return
        server = self.random.choice(servers)
        # A guest that has not named its server yet may have this one.
        for guest in self.guests:
            guest.read()
            if guest.server == server:
                guest.touch(LOST)
            elif not guest.server:
                guest.allowed.update((LOST, ATTACH))
        if all(guest.server != server for guest in self.guests):
            self.dying_spares.add(server)
        try:
            os.kill(server, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.counts["server"] += 1

    def kill_node(self):
        for guest in self.guests:
            guest.touch(LOST, ATTACH)
        deadline = time.monotonic() + HANG
        self.doomed.update(dict.fromkeys(self.node.kill(), deadline))
        self.counts["node"] += 1
        self.node.start()
        # Guests that had not connected yet find the new node.
        for guest in self.guests:
            if not guest.server:
                guest.deadline = guest.started + LIFE

    # The remaining processes.

    def quiet(self):
        """No guest, no session: everything is as it was at the start."""
        while self.guests or self.doomed:
            self.collect(0.05)
        self.node.settle()
        found = self.left()
        if self.start_of is None:
            self.start_of = found
        # A spare API server or the zygote may be about to be started again.
        until = time.monotonic() + HANG
        while self.leaks(found) and time.monotonic() < until:
            time.sleep(0.1)
            found = self.left()
        for name, value in found.items():
            if name in self.leaks(found):
                self.problem(f"{name}: {value}, at the start {self.start_of[name]}")
                if name == "descriptors":
                    self.log(f"{descriptors(self.node.pid)}")

    def leaks(self, found):
        """What there is more of than at the start. Fewer descriptors are those of a process that has not come back yet."""
        start = self.start_of
        return [name for name, value in found.items() if (value > start[name] if name == "descriptors" else value != start[name])]

    def left(self):
        return {
            "descriptors": len(descriptors(self.node.pid)),
            "shared memory": len(self.node.shared_memory()),
            "zombies": len(zombies(self.node.pid)),
            "sockets": sorted(path.name for path in self.node.socket.parent.iterdir()),
            "processes": len(strangers(self.node)),
            "temporary files": temporary(),
        }

    def run(self, count):
        self.quiet()
        memory = resident_mb(self.node.pid)
        begun = time.monotonic()
        done = 0
        while done < count and len(self.problems) < 20:
            for _ in range(min(ROUND, count - done)):
                while len(self.guests) < GUESTS:
                    self.start_guest()
                self.collect(self.random.choice([0, 0.002, 0.01, 0.03, 0.1, 0.2]))
                self.kill_one()
            done = sum(self.kills().values())
            self.quiet()
            self.log(f"{done} kills in {time.monotonic() - begun:.0f} s, {len(self.problems)} problems")
        return {
            "kills": done,
            **{f"kills_{kind}": value for kind, value in self.kills().items()},
            "guests": self.numbers,
            "seconds": round(time.monotonic() - begun, 1),
            "slowest_end_s": round(self.slowest, 3),
            "node_memory_mb": round(resident_mb(self.node.pid), 1),
            "node_memory_mb_at_start": round(memory, 1),
            "problems": len(self.problems),
            "endings": {key[6:]: value for key, value in sorted(self.counts.items()) if key.startswith("ended ")},
        }


def temporary():
    """Names in shared-memory folders that look like ours. A node has one with a random name, and a test beside may have others."""
    names = (path.name for path in Path("/dev/shm").iterdir())
    return sorted(name for name in names if "testapi" in name or "aviary" in name and not name.startswith("aviary-"))


def strangers(node):
    """API servers of this node's environment that are not its children any more, and what API servers have started."""
    mark = f"AVIARY_NODE_UNDER_TEST={node.directory}".encode()
    known = {node.pid, *node.servers()}
    # Processes that API servers in sandboxes have started are below them; their number is that of the start.
    found = [pid for pid in descendants(node.pid) if pid not in known]
    known.update(found)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in known:
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0") and alive(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def stacks(pid):
    """Where the threads of a process that should have ended are."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            name, place = (task / "comm").read_text().strip(), (task / "wchan").read_text()
            call = (task / "syscall").read_text().split()[0]
            found.append(f"{name}: {place} (system call {call})")
    except OSError:
        pass
    return "; ".join(found)
