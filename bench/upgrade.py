"""Must sessions notice an upgrade? Programs under load while the program of their node and all API servers are replaced."""

import json
import statistics
import subprocess
import time

import measure
from harness.node import guest_environment, running
from harness.process import AVIARY, ROOT, Failure, run, wait_until

SESSIONS = 100
# Programs that start at the same time.
AT_ONCE = 10
# Milliseconds between two pairs of calls of a program.
PAUSE_MS = 20
# Seconds under load before and after.
LOAD_S = 3
HANG = 300


def finished(programs):
    """How many calls the programs made, and how long the longest of each took, in milliseconds."""
    for program in programs:
        program.stdin.close()
    calls, longest = 0, []
    for program in programs:
        words = program.stdout.read().split()
        if program.wait(timeout=HANG) or words[:1] != ["calls"]:
            raise Failure(f"a program was lost: {program.returncode} {words}")
        calls += int(words[1])
        longest.append(float(words[3]))
    return calls, longest


def under_load(count, environment, meanwhile):
    """Runs `count` programs, and `meanwhile` among them."""
    command = [measure.BUILD / "upgrade", str(PAUSE_MS)]
    programs = []
    for first in range(0, count, AT_ONCE):
        some = [
            subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(min(AT_ONCE, count - first))
        ]
        programs += some
        for program in some:
            if program.stdout.readline() != "ready\n":
                raise Failure("a program did not start")
    time.sleep(LOAD_S)
    answer = meanwhile()
    time.sleep(LOAD_S)
    return answer, *finished(programs)


def upgraded(node):
    done = subprocess.run(
        [AVIARY, "upgrade", "--server", node.address, "--json", "--wait", "60"],
        capture_output=True, text=True, timeout=HANG, check=False,
    )
    if not done.stdout.strip():
        raise Failure(f"not upgraded: {done.stderr.strip()}")
    return json.loads(done.stdout)


def upgrade(quick):
    directory = measure.BUILD / "testapi"
    run(["sh", ROOT / "apis/testapi/build", directory])
    flags = ["-I", ROOT / "apis/testapi/include", "-L", directory, "-ltestapi"]
    measure.compile_c("upgrade", *flags)
    library = {"LD_LIBRARY_PATH": str(directory)}
    count = 20 if quick else SESSIONS
    with running(library) as node, guest_environment("testapi", library, node.address) as environment:
        _, _, usual = under_load(count, environment, lambda: time.sleep(1))
        wait_until(HANG, "the first programs have gone", lambda: not node.report()["sessions"])
        begun = time.monotonic()
        answer, calls, longest = under_load(count, environment, lambda: upgraded(node))
    if answer["moved"] != count or answer["stayed"]:
        raise Failure(f"{answer['moved']} of {count} moved: {answer['stayed']}")
    stood = [us / 1000 for us in answer["stood_us"]]
    return {
        "upgrade.sessions": count,
        "upgrade.lost": 0,
        "upgrade.longest_call_ms": max(longest),
        "upgrade.median_longest_call_ms": statistics.median(longest),
        "upgrade.usual_longest_call_ms": max(usual),
        "upgrade.longest_stop_ms": max(stood),
        "upgrade.median_stop_ms": statistics.median(stood),
        "upgrade.calls_per_s": calls / (time.monotonic() - begun),
    }
