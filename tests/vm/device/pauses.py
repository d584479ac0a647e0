"""A VM that its monitor stops and lets go on while programs of it run: for them that is a long moment, and no end."""

import subprocess
import time

from endings import hold, told
from harness.process import HANG, Wrong

# `wander` calls at random, with callbacks; it is run so often that pauses meet programs that begin and end, too.
STEPS, RUNS = 5_000, 10
# Seconds of each pause. The longest is longer than the driver has patience with its device.
PAUSES = (3.0, *[0.3] * 9)
LONG_PAUSES = (3.0,) * 10
BETWEEN = 0.2


def stop_and_go_on(vm, seconds):
    """`stop` and `cont` of QEMU's monitor."""
    for command, after in (("stop", seconds), ("cont", BETWEEN)):
        [answer] = vm.ask_monitor({"execute": command})
        if "error" in answer:
            raise Wrong(f"QEMU's answer to {command}: {answer}")
        time.sleep(after)


def a_pause_is_no_end(world):
    """Programs show what they show natively, and none is told of a loss."""
    environment = {"LD_LIBRARY_PATH": str(world.image.testapi)}
    command = [world.image.testapi / "wander", str(STEPS)]
    native = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=HANG)
    vm, held = hold(world, "one")
    runs = f"for run in $(seq {RUNS}); do /opt/testapi/wander {STEPS} || exit 1; done"
    started = vm.start(runs)
    for seconds in LONG_PAUSES if world.long else PAUSES:
        stop_and_go_on(vm, seconds)
        if not world.sessions(session=held["session"]):
            raise Wrong(f"the session has gone: {world.sessions()} {vm.why()}")
    outcome = vm.finish(started, HANG * 5)
    if (outcome.status, outcome.output) != (0, native.stdout * RUNS):
        raise Wrong(f"status {outcome.status}: {outcome.output[-500:]} {outcome.errors[-1000:]}")
    vm.expect("kill $(pidof hold)")
    said = vm.expect("cat /tmp/held")
    if "lost" in said:
        raise Wrong(f"a program that called all the time was told: {said}")
    vm.wait_until_nothing_is_left()


def another_carrier(world):
    """QEMU's generic device passes the queues on, too. It tells no reset from a pause, so a pause is taken for one: the guest is
    told, and its next programs work."""
    vm = world.vm("two", "--memory", "512M", "--carrier", "test-device")
    vm, _ = hold(world, "two")
    stop_and_go_on(vm, BETWEEN)
    told(world, vm)
    if "Portable Computing Language" not in vm.expect("clinfo -l"):
        raise Wrong("clinfo does not see the host's OpenCL")
    vm.end()
