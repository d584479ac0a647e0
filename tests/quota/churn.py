"""Many sessions that take and return memory at random while guests and API servers are killed.

All the time: used <= limit. Every so often, with the guests paused: used is what the API servers hold and what the
guests believe to hold, to the byte. At the end: nothing is used.
"""

import collections
import contextlib
import ctypes
import mmap
import os
import random
import signal
import subprocess
import threading
import time

from harness.process import HANG, Wrong, descendants, wait_until
from takers import accounts, ask, guests_environment, serving

# As in churn.c.
WORDS = 16
PID, OPERATIONS, GRANTED, REFUSED, HELD, PARKED, ON = range(7)
# Accounts that count on a device as well, in the order of `ON`: its part of the tenant's limit.
DEVICES = {"churn 1": 0.5, "churn 2": 0.45, "created": 0.2, "testapi accelerator": 0.07}
STOP, PAUSE = range(2)
FINE, ATTACH, LOST = 0, 2, 3
# Mean seconds between two kills, between two samples, and between two comparisons with the guests.
KILL, SAMPLE, COMPARE = 0.03, 0.004, 2.0
# Half of what the guests would like to hold.
LIMIT_PER_SESSION = 80_000
# User ids of the guests, by tenant; where the test may not become them all guests are one tenant's.
USERS = {"red": [40001, 40002], "blue": [40003]}


class Board:
    """A file that the guests count in."""

    def __init__(self, path, places):
        path.write_bytes(bytes(65536))
        path.chmod(0o666)
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 65536)
        self.words = (ctypes.c_uint64 * (65536 // 8)).from_buffer(self.memory)
        assert (places + 1) * WORDS <= len(self.words)

    def get(self, place, word):
        return self.words[place * WORDS + word]

    def set(self, place, word, value):
        self.words[place * WORDS + word] = value


class Guest:
    def __init__(self, process, place, tenant):
        self.process, self.place, self.tenant = process, place, tenant
        # Operations of earlier guests in this place.
        self.before = 0
        # After a kill it may end like this.
        self.allowed = {FINE}


class Churn:
    def __init__(self, tools, sessions, seed):
        self.tools, self.sessions, self.random = tools, sessions, random.Random(seed)
        self.board = Board(tools.directory / f"board-{seed}", sessions)
        self.path = tools.directory / f"board-{seed}"
        self.counts = collections.Counter()
        self.guests = {}
        self.problems = []
        self.samples = 0
        self.highest = collections.Counter()
        self.over = threading.Event()
        root = os.getuid() == 0
        self.users = USERS if root else {"own": [os.getuid()]}
        # Every third guest is blue.
        self.tenant_of = lambda place: list(self.users)[place % 3 // 2] if root else "own"
        members = collections.Counter(self.tenant_of(place) for place in range(1, sessions + 1))
        self.limits = {name: LIMIT_PER_SESSION * count for name, count in members.items()}
        self.device_limits = {
            (name, device): int(limit * part) for name, limit in self.limits.items() for device, part in DEVICES.items()
        }

    def config(self):
        text = 'sessions_per_user = 4096\nspares = 4\n'
        for name, users in self.users.items():
            text += f"[tenants.{name}]\nusers = {users}\nlimits = {{ device_memory = {self.limits[name]} }}\n"
            for device in DEVICES:
                limit = self.device_limits[name, device]
                text += f'[tenants.{name}.devices."{device}"]\nlimits = {{ device_memory = {limit} }}\n'
        return text

    # Guests.

    def start(self, place):
        tenant = self.tenant_of(place)
        self.board.set(place, PID, 0)
        for word in (HELD, PARKED, *range(ON, ON + len(DEVICES))):
            self.board.set(place, word, 0)
        command = [self.tools.program("churn"), self.path, str(place), str(self.random.getrandbits(60))]
        user = {"user": self.random.choice(self.users[tenant])} if os.getuid() == 0 else {}
        process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **user
        )
        self.guests[place] = Guest(process, place, tenant)
        self.guests[place].before = self.board.get(place, OPERATIONS)
        self.counts["guests"] += 1

    def reap(self):
        """Notices who ended, and that it was allowed to."""
        for place, guest in list(self.guests.items()):
            status = guest.process.poll()
            if status is None:
                continue
            del self.guests[place]
            words = guest.process.stdout.read().strip()
            guest.process.stdout.close()
            self.counts[f"ended {status}"] += 1
            if status not in guest.allowed:
                self.problems.append(f"guest {place} ended with {status}, allowed {sorted(guest.allowed)}: {words}")

    def kill(self):
        if self.random.random() < 0.5:
            guest = self.random.choice(list(self.guests.values()))
            guest.allowed.add(-signal.SIGKILL)
            guest.process.kill()
            self.counts["kills of guests"] += 1
            return
        sessions = {session["guest"]: session["server"] for session in ask(self.node, "ps")["sessions"]}
        guest = self.random.choice(list(self.guests.values()))
        server = sessions.get(guest.process.pid)
        if server in descendants(self.node.pid):
            guest.allowed.update((LOST, ATTACH))
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
            self.counts["kills of API servers"] += 1

    # Looking.

    def sample(self):
        """In a thread of its own: never over the limit."""
        while not self.over.wait(SAMPLE):
            try:
                tenants = ask(self.node, "tenants")
            except (OSError, ValueError) as error:
                self.problems.append(f"the node does not answer: {error}")
                return
            for tenant in tenants:
                for account in tenant["accounts"]:
                    if account["resource"] == "device_memory":
                        self.look(tenant["name"], account)
            self.samples += 1

    def look(self, tenant, account):
        device = account.get("device")
        limit = self.device_limits[tenant, device] if device else self.limits[tenant]
        place = f"{tenant} on {device}" if device else tenant
        self.highest[place] = max(self.highest[place], account["used"])
        # The peak is noted with every charge: it shows also what was over before the next sample.
        if max(account["used"], account["peak"]) > limit:
            self.problems.append(f"tenant {tenant} is over its limit of {limit}: {account}")

    def compare(self):
        """With all guests paused, three books must agree."""
        self.board.set(0, PAUSE, 1)
        self.settle(lambda: all(self.board.get(place, PARKED) for place in self.guests))
        # The API servers of dead guests are reaped.
        live = {guest.process.pid for guest in self.guests.values()}
        self.settle(lambda: self.attached() <= live)
        for tenant in self.users:
            for device in (None, *DEVICES):
                wait_until(HANG, f"the books of {tenant} agree on {device}: {self.books(tenant, device)}",
                           lambda tenant=tenant, device=device: self.agree(tenant, device))
        self.counts["comparisons"] += 1
        self.counts["compared"] += len(self.attached())
        wait_until(HANG, "every operation was a call of an API server", self.all_arrived)
        self.board.set(0, PAUSE, 0)

    def all_arrived(self):
        """No operation was answered by anybody else: each attached guest's API server counted as many calls."""
        calls = {session["guest"]: session["counters"].get("calls", 0) for session in ask(self.node, "ps")["sessions"]}
        own = {guest.process.pid: self.board.get(guest.place, OPERATIONS) - guest.before for guest in self.guests.values()}
        return all(count >= own[pid] for pid, count in calls.items() if pid in own)

    def attached(self):
        return {session["guest"] for session in ask(self.node, "ps")["sessions"]}

    def books(self, tenant, device=None):
        """What is used, what the API servers hold, what the guests believe. A paused guest whose API server was
        killed has not noticed yet: what it believes does not count."""
        attached = self.attached()
        guests = [guest for guest in self.guests.values() if guest.tenant == tenant and guest.process.pid in attached]
        account = accounts(self.node, tenant, device=device)
        word = ON + list(DEVICES).index(device) if device else HELD
        return account["used"], account["held"], sum(self.board.get(guest.place, word) for guest in guests)

    def agree(self, tenant, device):
        return len(set(self.books(tenant, device))) == 1

    def settle(self, condition):
        def settled():
            self.reap()
            return condition()
        wait_until(HANG, "the guests are paused and the dead reaped", settled)

    # All of it.

    def run(self, operations):
        with serving(self.tools, self.config()) as node:
            self.node, self.environment = node, guests_environment(node)
            sampler = threading.Thread(target=self.sample)
            sampler.start()
            began = time.monotonic()
            try:
                self.go_on(operations)
                seconds = time.monotonic() - began
                self.finish()
            finally:
                self.over.set()
                sampler.join()
                for guest in self.guests.values():
                    guest.process.kill()
                    guest.process.wait()
                    guest.process.stdout.close()
            self.check_log()
        if self.problems:
            raise Wrong("\n".join(self.problems[:10]))
        if self.samples < 10 or not self.counts["kills of API servers"] or not self.counts["comparisons"]:
            raise Wrong(f"too little happened: {self.samples} samples, {dict(self.counts)}")
        if self.counts["compared"] < self.counts["comparisons"] * self.sessions * 0.7:
            raise Wrong(f"too few sessions were compared: {dict(self.counts)}")
        return self.figures(seconds)

    def total(self, word):
        return sum(self.board.get(place, word) for place in range(1, self.sessions + 1))

    def go_on(self, operations):
        for place in range(1, self.sessions + 1):
            self.start(place)
        next_kill, next_comparison = 0, time.monotonic() + COMPARE
        while self.total(OPERATIONS) < operations and not self.problems:
            time.sleep(0.005)
            self.reap()
            for place in range(1, self.sessions + 1):
                if place not in self.guests:
                    self.start(place)
            now = time.monotonic()
            if now >= next_kill:
                self.kill()
                next_kill = now + self.random.expovariate(1 / KILL)
            if now >= next_comparison:
                self.compare()
                next_comparison = time.monotonic() + COMPARE
        self.compare()

    def finish(self):
        """Everybody leaves as they are, with what they hold."""
        self.board.set(0, STOP, 1)
        self.settle(lambda: not self.guests)
        for tenant in self.users:
            for device in (None, *DEVICES):
                wait_until(HANG, f"nothing of {tenant} is used on {device}: {self.books(tenant, device)}",
                           lambda tenant=tenant, device=device: self.books(tenant, device) == (0, 0, 0))
        places = [(tenant, device) for tenant in self.users for device in (None, *DEVICES)]
        refused = {place: accounts(self.node, place[0], device=place[1])["refused"] for place in places}
        self.refused = sum(refused.values())
        idle = [place for place, count in refused.items() if place[1] and not count]
        if idle:
            self.problems.append(f"no limit of a device refused anything: {idle}")
        if self.refused < self.total(REFUSED):
            self.problems.append(f"{self.refused} refusals were counted, the guests saw {self.total(REFUSED)}")

    def check_log(self):
        """A line about a refusal for ten a second and tenant, not for every one."""
        lines = self.node.log.read_text(encoding="utf-8", errors="replace").splitlines()
        self.counts["audit lines"] = sum(": refused: tenant=" in line for line in lines)
        if not self.counts["audit lines"]:
            self.problems.append("no refusal was told")

    def figures(self, seconds):
        done = self.total(OPERATIONS)
        return {
            "operations": done,
            "granted": self.total(GRANTED),
            "refused": self.total(REFUSED),
            "sessions": self.sessions,
            "tenants": len(self.users),
            "seconds": round(seconds, 1),
            "operations_per_second": round(done / seconds),
            "guests_started": self.counts["guests"],
            "kills_of_guests": self.counts["kills of guests"],
            "kills_of_api_servers": self.counts["kills of API servers"],
            "samples": self.samples,
            "comparisons": self.counts["comparisons"],
            "sessions_per_comparison": round(self.counts["compared"] / self.counts["comparisons"], 1),
            "audit_lines": self.counts["audit lines"],
            "highest_use": {name: f"{self.highest[name]} of {limit}" for name, limit in self.limits.items()},
            "highest_use_of_devices": {
                f"{name} on {device}": f"{self.highest[name + ' on ' + device]} of {limit}"
                for (name, device), limit in self.device_limits.items()
            },
            "problems": len(self.problems),
        }
