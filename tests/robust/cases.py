"""Single cases, each a function that raises `Wrong`."""

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import time

from harness.node import guest_environment, running
from harness.process import AVIARY, HANG, Wrong, alive, api_server, descriptors, wait_until

FINE, ATTACH, LOST = 0, 2, 3


@contextlib.contextmanager
def node_and_guests(tools, *options):
    """A node, and the environment of guests of testapi."""
    with running(tools.testapi, *options) as node, guest_environment("testapi", tools.testapi, node.address) as guests:
        yield node, guests


def start(command, environment, **options):
    return subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        **options,
    )


def end(guest, *allowed, within=HANG, what="the guest"):
    """Waits for it; its status must be one of these."""
    try:
        out, err = guest.communicate(timeout=within)
    except subprocess.TimeoutExpired as expired:
        guest.kill()
        guest.communicate()
        raise Wrong(f"{what} still runs after {within:g} s") from expired
    if guest.returncode not in allowed:
        raise Wrong(f"{what} ended with {guest.returncode}, expected {allowed}: {out[-600:]} {err[-600:]}")
    return out, err


def attached(program, environment, *arguments, **options):
    """A guest that has said which process serves it."""
    guest = start([program, *map(str, arguments)], environment, **options)
    words = guest.stdout.readline().split()
    if len(words) != 2 or words[0] != "ready":
        guest.kill()
        raise Wrong(f"{program.name} did not attach: {words} {guest.communicate()[1][-600:]}")
    return guest, api_server(int(words[1]))


def works(tools, environment, what):
    guest, _ = attached(tools.program("worker"), environment, 1, 20)
    end(guest, FINE, what=what)


# --- a node that dies, stands still or is started twice ------------------------------------------


def node_restart(tools):
    """Guests of a killed node are told so; a new node on the same path serves new ones."""
    with node_and_guests(tools) as (node, guests):
        for transport in ("", "stream"):
            environment = guests | {"AVIARY_TRANSPORT": transport}
            busy, server = attached(tools.program("worker"), environment, 7, 60000)
            idle, idle_server = attached(tools.program("stuck"), environment, 5)
            node.kill()
            end(busy, LOST, what="a busy guest of a killed node")
            idle.stdin.write("\n")
            idle.stdin.flush()
            end(idle, LOST, what="an idle guest of a killed node")
            wait_until(HANG, "API servers of a killed node end", lambda: not alive(server) and not alive(idle_server))
            end(start([tools.program("worker"), "1", "10"], environment), ATTACH, what="a guest without a node")
            node.start()
            works(tools, environment, "a guest of the new node")
        second = subprocess.run(
            [AVIARY, "serve", "--listen", node.address], capture_output=True, text=True, timeout=HANG, check=False
        )
        if second.returncode == 0 or "already listens" not in second.stderr:
            raise Wrong(f"a second node on the same path: {second.returncode} {second.stderr}")
        node.settle()


def node_stands_still(tools):
    """A stopped node delays new guests and no others."""
    with node_and_guests(tools) as (node, guests):
        old, _ = attached(tools.program("stuck"), guests, 200000)
        os.kill(node.pid, signal.SIGSTOP)
        old.stdin.write("\n")
        new = [start([tools.program("worker"), str(seed), "10"], guests) for seed in range(8)]
        end(old, FINE, what="a guest that was attached before")
        if any(guest.poll() is not None for guest in new):
            raise Wrong("a guest ended although the node stood still")
        os.kill(node.pid, signal.SIGCONT)
        for guest in new:
            end(guest, FINE, what="a guest that had to wait")
        node.settle()


def zygote_dies(tools):
    """Sessions do not depend on the process that they were copied from; it comes back."""
    with node_and_guests(tools) as (node, guests):
        node.settle()
        zygote = node.report()["zygote"]
        old, server = attached(tools.program("worker"), guests, 3, 1000)
        os.kill(zygote, signal.SIGKILL)
        works(tools, guests, "a guest without a zygote")
        end(old, FINE, what="a guest that was attached before")
        wait_until(HANG, "another zygote", lambda: (node.report() or {}).get("zygote") not in (0, zygote, None))
        for _ in range(3):
            works(tools, guests, "a guest of the second zygote")
        node.settle()
        # One that stands still is given up, too.
        os.kill(node.report()["zygote"], signal.SIGSTOP)
        for _ in range(3):
            works(tools, guests, "a guest with a zygote that stands still")
        node.settle()


# --- the node's socket ------------------------------------------------------------------------------


def garbage_on_the_socket(tools):
    """Noise, half greetings, connections that say nothing: nobody else notices, nothing is left."""
    with node_and_guests(tools) as (node, guests):
        node.settle()
        before = len(descriptors(node.pid))
        old, _ = attached(tools.program("worker"), guests, 3, 4000)
        numbers = random.Random(5)
        hello = bytes.fromhex("415659480100000000")
        silent = [connect(node) for _ in range(20)]
        for turn in range(150):
            with connect(node) as peer, contextlib.suppress(OSError):
                noise = numbers.randbytes(numbers.randrange(1, 3000))
                for byte in (hello + noise)[:40]:
                    peer.send(bytes([byte]))
                peer.send(noise)
                if turn % 3 == 0:
                    peer.shutdown(socket.SHUT_WR)
                if turn % 3 == 1:
                    # Surplus descriptors.
                    socket.send_fds(peer, [noise[:10]], [0, 1, 2, 0, 1, 2])
            if turn % 30 == 0:
                works(tools, guests, "a guest amid noise")
        works(tools, guests, "a guest beside connections that say nothing")
        # The API server of those that say nothing gives up waiting.
        for peer in silent:
            peer.settimeout(HANG)
            with contextlib.suppress(ConnectionResetError):
                while peer.recv(1000):
                    pass
            peer.close()
        end(old, FINE, what="a guest that was attached before")
        node.settle()
        after = len(descriptors(node.pid))
        if after != before:
            raise Wrong(f"the node has {after} descriptors open, before {before}")
        if "panick" in node.log.read_text(encoding="utf-8", errors="replace"):
            raise Wrong("something panicked: see the node's log")


def connect(node):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(node.socket))
    return peer


# --- full rings, full memory, no descriptors -----------------------------------------------------------


def full_rings(tools):
    """A guest is faster than its server: it waits, nothing is lost; if the server dies then, it is told."""
    with node_and_guests(tools) as (_, guests):
        for transport in ("", "stream"):
            environment = guests | {"AVIARY_TRANSPORT": transport}
            for dies in (False, True):
                guest, server = attached(tools.program("stuck"), environment, 50000)
                os.kill(server, signal.SIGSTOP)
                guest.stdin.write("\n")
                guest.stdin.flush()
                time.sleep(0.5)
                if guest.poll() is not None:
                    raise Wrong(f"the guest ended with {guest.returncode} while its server stood still")
                os.kill(server, signal.SIGKILL if dies else signal.SIGCONT)
                what = f"a guest with a full ring ({transport or 'shared memory'})"
                end(guest, LOST if dies else FINE, what=what)


def limited(kind, amount):
    return lambda: resource.setrlimit(kind, (amount, amount))


def little_memory(tools):
    """Address space is scarce on either side: an error or a smaller arena, no crash."""
    with node_and_guests(tools) as (node, guests):
        for megabytes, allowed in ((64, {LOST, 127}), (300, {FINE, LOST}), (2048, {FINE}), (70000, {FINE})):
            guest = start([tools.program("stuck"), "1000"], guests, preexec_fn=limited(resource.RLIMIT_AS, megabytes << 20))
            guest.stdin.write("\n")
            end(guest, *allowed, what=f"a guest with {megabytes} MiB of addresses")
        node.settle()
    with running(tools.testapi) as node, guest_environment("testapi", tools.testapi, node.address) as guests:
        node.kill()
        node.start(limits=limited(resource.RLIMIT_AS, 2 << 30))
        _, said = end(start([tools.program("worker"), "1", "50"], guests), ATTACH, what="a guest whose arena is too large")
        if "arena" not in said:
            raise Wrong(f"a guest whose arena the server cannot map is told: {said}")
        smaller = guests | {"AVIARY_ARENA": "256M"}
        end(start([tools.program("worker"), "1", "50"], smaller), FINE, what="a guest with a small arena")
        node.settle()


def cut_off(tools):
    """Processes of a program that do not see the socket and have closed what they inherited, or that may not call `socket`."""
    for way in ("files", "socket"):
        command = [tools.program("cut_off"), way, tools.program("worker"), "1", "20"]
        done = subprocess.run(
            [AVIARY, "run", "--api", "testapi", "--", *command], env=os.environ | tools.testapi, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=HANG, check=False,
        )
        if done.returncode == 77:
            print(f"skip cut_off {way}: this user may not do that", flush=True)
        elif done.returncode != FINE or done.stderr:
            raise Wrong(f"cut off by {way}: {done.returncode}: {done.stdout[-300:]} {done.stderr[-600:]}")


def no_descriptors_in_the_guest(tools):
    with node_and_guests(tools) as (node, guests):
        for transport in ("", "stream"):
            environment = guests | {"AVIARY_TRANSPORT": transport} if transport else guests
            end(start([tools.program("descriptors")], environment), FINE, what=f"descriptors ({transport})")
        node.settle()


def no_descriptors_in_the_node(tools):
    """What does not fit is refused with a reason; what was there goes on, and later there is room again."""
    with node_and_guests(tools) as (node, guests):
        node.kill()
        node.start(limits=limited(resource.RLIMIT_NOFILE, 64))
        node.settle()
        before = len(descriptors(node.pid))
        held, refused = [], []
        for _ in range(30):
            guest = start([tools.program("stuck"), "10"], guests)
            (held if guest.stdout.readline().split()[1:] not in ([], ["0"], ["-9"]) else refused).append(guest)
        if len(held) < 5 or not refused:
            raise Wrong(f"{len(held)} guests attached, {len(refused)} were refused")
        for guest in refused:
            guest.stdin.write("\n")
            _, said = end(guest, 1, LOST, what="a refused guest")
            if "refused" not in said:
                raise Wrong(f"a refused guest is told: {said}")
        for guest in held:
            guest.stdin.write("\n")
            end(guest, FINE, what="a guest that was attached before")
        node.settle()
        works(tools, guests, "a guest after the others left")
        node.settle()
        wait_until(HANG, "the node's descriptors are closed", lambda: len(descriptors(node.pid)) == before)


def no_descriptors_in_the_server(tools):
    """Many lanes over sockets exhaust one API server: that session's own affair."""
    with node_and_guests(tools) as (node, guests):
        node.kill()
        node.start(limits=limited(resource.RLIMIT_NOFILE, 48))
        node.settle()
        other, _ = attached(tools.program("worker"), guests, 5, 2000)
        mirrored = guests | {"AVIARY_TRANSPORT": "stream"}
        crowd = start([tools.program("crowd"), "60"], mirrored)
        end(crowd, FINE, LOST, what="a guest with 60 lanes over sockets")
        end(other, FINE, what="another guest")
        node.settle()
        works(tools, guests, "a guest after that")
        node.settle()


# --- idle sessions ---------------------------------------------------------------------------------


# Looks at an idle session; one in which nothing runs is enough.
WINDOWS = 5


def switches(pids):
    """How often the threads of these processes ran."""
    count = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status", encoding="utf-8") as status:
                count += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
    return count


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def quiet(tools):
    """Nobody wakes up for an idle session, not even for one with callbacks; and yet its threads learn of a death."""
    with node_and_guests(tools) as (node, guests):
        guest, server = attached(tools.program("quiet"), guests)
        node.settle_pool()
        pids = [guest.pid, server, node.pid]
        # Work that attaching left may come late. A regular wake-up happens in each of the windows.
        woken = []
        for _ in range(WINDOWS):
            before = switches(pids)
            time.sleep(3)
            woken.append(switches(pids) - before)
            if not woken[-1]:
                break
        else:
            raise Wrong(f"guest, API server and node woke up {woken} times in windows of 3 s")
        waiting = threads(guest.pid)
        os.kill(server, signal.SIGKILL)
        wait_until(HANG, "the callback thread ends with the server", lambda: threads(guest.pid) < waiting)
        guest.stdin.write("\n")
        end(guest, LOST, what="an idle guest whose server was killed")


# --- awkward guests --------------------------------------------------------------------------------


def program_case(name, *arguments, transports=("", "stream")):
    def case(tools):
        with node_and_guests(tools) as (node, guests):
            for transport in transports:
                environment = guests | {"AVIARY_TRANSPORT": transport}
                guest = start([tools.program(name), *map(str, arguments)], environment)
                end(guest, FINE, what=f"{name} ({transport or 'shared memory'})")
            node.settle()

    return case


def raced_handles(tools):
    """Threads of a guest use objects that another one ends: its API server lives, and calls are refused at worst."""
    with running(tools.testapi) as node, guest_environment("opencl", {}, node.address) as guests:
        for _ in range(10):
            # A crash of the guest itself is its own.
            guest = start([tools.program("race_cl"), "300"], guests)
            end(guest, FINE, -signal.SIGSEGV, -signal.SIGABRT, what="a guest that races its own calls")
        node.settle()


def raced_references(tools):
    """Objects end while others that were made with them, set on or mapped from them are used: the API server lives."""
    with running(tools.testapi) as node, guest_environment("opencl", {}, node.address) as guests:
        for case in ("arguments", "clones", "parts", "unmaps", "commands"):
            for _ in range(4):
                guest = start([tools.program("race_held_cl"), case, "200"], guests)
                end(guest, FINE, -signal.SIGSEGV, -signal.SIGABRT, what=f"a guest that races its own calls ({case})")
        node.settle()


def many_sessions(tools):
    """A thousand sessions at a time: all work, and all that they had is given back."""
    with node_and_guests(tools) as (node, guests):
        node.settle()
        before = len(descriptors(node.pid))
        program, all_guests = tools.program("stuck"), []
        try:
            while len(all_guests) < 1000:
                some = [start([program, "10"], guests) for _ in range(20)]
                all_guests += some
                for guest in some:
                    if not guest.stdout.readline().startswith("ready"):
                        raise Wrong(f"guest {len(all_guests)} did not attach: {guest.communicate()[1]}")
            sessions = len(node.report()["sessions"])
            if sessions != 1000:
                raise Wrong(f"{sessions} sessions, expected 1000")
            for guest in all_guests:
                guest.stdin.write("\n")
                guest.stdin.flush()
            for guest in all_guests:
                end(guest, FINE, what="one of 1000 guests")
            all_guests.clear()
            node.settle()
            wait_until(HANG, "the node's descriptors are closed", lambda: len(descriptors(node.pid)) == before)
        finally:
            for guest in all_guests:
                guest.kill()
                guest.communicate()


# --- a device that several sessions share ----------------------------------------------------------

# Nanoseconds of a submission, submissions until a wait, microseconds of pause.
LOADS = [("207000", 1, 0), ("207000", 50, 0), ("21000", 30, 0), ("100000-5000000", 3, 0), ("3000000", 1, 0), ("500000", 1, 3000)]
DEATHS = 80


def sharers_are_killed(tools):
    """Guests and API servers die at any point of a slice, also while the device passes on: the others always go on."""
    with node_and_guests(tools, "--scheduler", "fair", "--slice", "3ms") as (node, guests):
        chance, running_guests = random.Random(), []

        def use(load, seconds):
            begin = time.monotonic()
            client = 1 + LOADS.index(load)
            return start([tools.program("accelerate"), *map(str, (client, *load, begin, begin + seconds))], guests)

        try:
            running_guests = [use(load, 600) for load in LOADS]
            for _ in range(DEATHS):
                time.sleep(chance.uniform(0.01, 0.15))
                sessions = node.report()["sessions"]
                if sessions and chance.random() < 0.5:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice(sessions)["server"], signal.SIGKILL)
                else:
                    chance.choice(running_guests).kill()
                for i, guest in enumerate(running_guests):
                    if guest.poll() is not None:
                        guest.communicate()
                        running_guests[i] = use(LOADS[i], 600)
            # Each of them gets its turn: in half a second, or where programs take longer to start in some more.
            for seconds in (0.5, 4, 32):
                last = [use(load, seconds) for load in LOADS]
                counts = [int(end(guest, FINE, what="a guest after all the deaths", within=seconds + HANG)[0]) for guest in last]
                if all(counts):
                    break
            else:
                raise Wrong(f"a guest got nothing of the device in {seconds} s: {counts}")
        finally:
            for guest in running_guests:
                guest.kill()
                guest.communicate()
        node.settle()


ALL = {
    "node-restart": node_restart,
    "node-stands-still": node_stands_still,
    "zygote-dies": zygote_dies,
    "garbage": garbage_on_the_socket,
    "full-rings": full_rings,
    "cut-off": cut_off,
    "little-memory": little_memory,
    "descriptors-guest": no_descriptors_in_the_guest,
    "descriptors-node": no_descriptors_in_the_node,
    "descriptors-server": no_descriptors_in_the_server,
    "quiet": quiet,
    "signals": program_case("storm"),
    # Fork amid calls, signals, leaving from a callback, small stacks: testapi's own program.
    "awkward": program_case("robust"),
    "unload": program_case("unload"),
    "sharers": sharers_are_killed,
    "raced-handles": raced_handles,
    "raced-references": raced_references,
    "thousand": many_sessions,
}
