"""A VM that its monitor stops and lets go on while programs of it run: for them that is a long moment, and no end."""

import subprocess
import time

from harness.process import HANG, Wrong

# Steps of `wander`, and how often it is run: so a pause meets programs that attach, too.
STEPS, RUNS = 20_000, 10
# Seconds of the VM's own time for which `hold` calls: longer than all that is between the pauses.
HOLD = 10
# Seconds of a pause: longer than anything waits that is awake.
PAUSES = (0.2, 1.0, 3.0)
BETWEEN = 0.2


def a_pause_is_no_end(world):
    """`stop` and `cont` of QEMU's monitor; programs show what they show natively, and none is told of a loss."""
    environment = {"LD_LIBRARY_PATH": str(world.image.testapi)}
    command = [world.image.testapi / "wander", str(STEPS)]
    native = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=HANG)
    vm = world.one()
    runs = f"for run in $(seq {RUNS}); do /opt/testapi/wander {STEPS} || exit 1; done"
    started = vm.start(f"/opt/testapi/hold {HOLD} >/tmp/held & {runs}; wait $!")
    session = world.wait_for_session(vm="one", program="hold")
    for seconds in PAUSES:
        [stopped] = vm.ask_monitor({"execute": "stop"})
        time.sleep(seconds)
        there = world.sessions(session=session["session"])
        [went_on] = vm.ask_monitor({"execute": "cont"})
        if "error" in stopped or "error" in went_on or not there:
            raise Wrong(f"QEMU's answers: {stopped} {went_on}; sessions: {world.sessions()}")
        time.sleep(BETWEEN)
    outcome = vm.finish(started, HANG * 5)
    if (outcome.status, outcome.output) != (0, native.stdout * RUNS):
        raise Wrong(f"status {outcome.status}: {outcome.output[-500:]} {outcome.errors[-1000:]} {vm.run('cat /tmp/held').output}")
