"""What a link costs: calls, bulk and both at once between two network namespaces, beside iperf3 over the same link."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time

import measure
from harness.process import AVIARY, ROOT, Failure, run

NODE, PORT = "10.99.0.2", "7802"
# One way, in microseconds, and the rate in Mbit/s.
DELAY, RATE = 1000, 1000
ROUND_TRIP = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "answer":
    s.bind((sys.argv[2], 7999))
    while True:
        data, peer = s.recvfrom(16)
        s.sendto(data, peer)
s.settimeout(1)
times = []
for _ in range(200):
    start = time.perf_counter()
    s.sendto(b"x", (sys.argv[2], 7999))
    s.recv(16)
    times.append(time.perf_counter() - start)
    time.sleep(0.002)
print('{"ms": %f}' % (sorted(times)[100] * 1e3))
"""


def quietly(*command):
    subprocess.run(command, capture_output=True, check=False)


@contextlib.contextmanager
def background(command, **options):
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def link(limited):
    """Two namespaces, connected by a line with a delay and a rate, or by a veth pair without either."""
    a, b = f"aviary-a{os.getpid()}", f"aviary-b{os.getpid()}"
    with contextlib.ExitStack() as stack:
        for space in (a, b):
            run(["ip", "netns", "add", space])
            stack.callback(quietly, "ip", "netns", "del", space)
        if limited:
            command = [measure.compile_c("delay"), a, b, str(DELAY), str(RATE)]
            process = stack.enter_context(background(command, stdout=subprocess.PIPE))
            if process.stdout.readline() != b"ready\n":
                raise Failure("no tunnel between namespaces")
        else:
            run(["ip", "link", "add", "link0", "netns", a, "type", "veth", "peer", "name", "link0", "netns", b])
        for number, space in enumerate((a, b), 1):
            run(["ip", "-n", space, "address", "add", f"10.99.0.{number}/24", "dev", "link0"])
            run(["ip", "-n", space, "link", "set", "lo", "up"])
            run(["ip", "-n", space, "link", "set", "link0", "up"])
        yield ["ip", "netns", "exec", a], ["ip", "netns", "exec", b]


def iperf(client, *options):
    """Megabytes a second that arrive."""
    result = run([*client, "iperf3", "-c", NODE, "-t", "3", "-O", "1", "-f", "m", *options])
    line = [line for line in result.splitlines() if "receiver" in line][-1].split()
    return float(line[line.index("Mbits/sec") - 1]) / 8


def over(limited, folder, options=()):
    """Results of bench/net.c, the round trip in ms (alone, and beside iperf3), and iperf3's speed in both directions."""
    _, environment = measure.test_library()
    flags = ["-I", ROOT / "apis/testapi/include", "-L", measure.BUILD / "testapi", "-ltestapi", "-lpthread"]
    program = measure.compile_c("net", *flags)
    with link(limited) as (client, node), contextlib.ExitStack() as stack:
        serve = [*node, AVIARY, "serve", "--listen", f"{NODE}:{PORT}", "--tls-dir", f"{folder}/node"]
        stack.enter_context(background(serve, env={**os.environ, **environment}))
        stack.enter_context(background([*node, "iperf3", "-s"], stdout=subprocess.DEVNULL))
        with background([*node, "python3", "-c", ROUND_TRIP, "answer", NODE]):
            time.sleep(1)
            ask = [*client, "python3", "-c", ROUND_TRIP, "ask", NODE]
            trip = measure.measured(ask)["ms"]
            with background([*client, "iperf3", "-c", NODE, "-t", "10"], stdout=subprocess.DEVNULL):
                time.sleep(1)
                crowded = measure.measured(ask)["ms"]
        options = ["--api", "testapi", "--server", f"{NODE}:{PORT}", "--tls-dir", f"{folder}/tenant-bench", *options]
        results = []
        speeds = {"up": [], "down": []}
        # They take turns, so that a change of the machine's mood meets both.
        for _ in range(3):
            command = [*client, *measure.remoted([program], *options)]
            results.append(measure.measured(command, env=environment))
            speeds["up"].append(iperf(client))
            speeds["down"].append(iperf(client, "-R"))
        return measure.medians(results), (trip, crowded), measure.medians([dict(zip(speeds, pair)) for pair in zip(*speeds.values())])


def net(_quick):
    for needed in ("ip", "iperf3"):
        if not shutil.which(needed):
            raise Failure(f"{needed} is missing: ./x setup installs it")
    if os.geteuid():
        raise Failure("network namespaces need root")
    with tempfile.TemporaryDirectory() as folder:
        run([AVIARY, "tls", "init", folder, "--tenant", "bench", "--name", NODE])
        limited, (trip, crowded), line = over(True, folder)
        free, _, bare = over(False, folder)
    return {
        "net.rtt_ms": trip,
        "net.sync_rtts": limited["sync_ms"] / trip,
        "net.async1000_plus_sync_rtts": limited["async_ms"] / trip,
        "net.bulk_vs_iperf3": min(limited["write_MBps"] / line["up"], limited["read_MBps"] / line["down"]),
        "net.bulk_write_MBps": limited["write_MBps"],
        "net.bulk_read_MBps": limited["read_MBps"],
        "net.small_during_bulk_ms": limited["small_ms"],
        "net.small_during_bulk_p99_ms": limited["small_p99_ms"],
        "net.rtt_during_iperf3_ms": crowded,
        "net.unlimited_write_MBps": free["write_MBps"],
        "net.unlimited_read_MBps": free["read_MBps"],
        "net.unlimited_iperf3_MBps": bare["up"],
        "net.unlimited_sync_us": free["sync_ms"] * 1000,
    }
