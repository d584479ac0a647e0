"""What dies, and what is left: of processes in a VM, of VMs, of devices, of nodes. Afterwards others are as before."""

import os
import signal
import time

from harness.process import HANG, Wrong, alive, descriptors, wait_until
from machines import TENANTS

HOLD = "AVIARY_PIN=0 /opt/testapi/hold 600 >/tmp/held 2>&1 &"


def hold(world, name):
    """A process in a VM that calls all the time, and how it ends."""
    vm = world.vm(name).wait_for_boot()
    # The program in the background creates it a moment later than the shell answers.
    vm.expect(": >/tmp/held; " + HOLD)
    wait_until(HANG, "hold has attached", lambda: "holding" in vm.expect("cat /tmp/held"))
    return vm, world.wait_for_session(vm=name, program="hold")


def unchanged(world, before):
    """Descriptors of the node, and of devices that are still there."""
    after = world.settle()
    differ = {who: (count, after[who]) for who, count in before.items() if who in after and after[who] != count}
    if differ:
        raise Wrong(f"descriptors before and after: {differ}, of the node now: {sorted(descriptors(world.node.pid))}")


def a_process_is_killed(world):
    """In the middle of a call."""
    vm = world.one()
    vm.expect("/opt/testapi/cycles 1")
    before = world.settle()
    vm, session = hold(world, "one")
    began = time.monotonic()
    vm.expect("kill -9 $(pidof hold)")
    wait_until(HANG, "its API server ends", lambda: not alive(session["server"]))
    world.log(f"its API server had gone after {time.monotonic() - began:.2f} s")
    unchanged(world, before)
    vm.wait_until_nothing_is_left()


def cycles(world):
    """Processes that attach and die, again and again."""
    vm = world.one()
    # Objects that the guest's kernel keeps are there then.
    vm.expect("/opt/testapi/cycles 20 2")
    before = world.settle()
    count = 1000 if world.long else 100
    free = int(vm.expect("awk '/MemFree/ { print $2 }' /proc/meminfo"))
    began = time.monotonic()
    world.log(vm.expect(f"AVIARY_PIN=0 /opt/testapi/cycles {count}", 60 + 2 * count).strip() + f" in {time.monotonic() - began:.0f} s")
    unchanged(world, before)
    vm.wait_until_nothing_is_left()
    after = int(vm.expect("awk '/MemFree/ { print $2 }' /proc/meminfo"))
    world.log(f"descriptors as before: {before}; memory free in the VM: {free} KiB before, {after} KiB after")
    # A leak of one chunk per cycle would be 256 KiB each.
    if free - after > count * 64 + 16384:
        raise Wrong(f"the guest had {free} KiB free before {count} cycles, and {after} KiB afterwards")


def migration_is_refused(world):
    """The device cannot be moved; QEMU says so, and the VM goes on."""
    vm = world.one()
    [answer] = vm.ask_monitor({"execute": "migrate", "arguments": {"uri": f"file:{world.directory}/moved"}})
    world.log(f"QEMU: {answer.get('error', {}).get('desc')}")
    if "error" not in answer or "migrat" not in answer["error"]["desc"].lower():
        raise Wrong(f"QEMU's answer to migrate: {answer}")
    vm.expect("clinfo -l | grep Platform")


def snapshots_are_refused(world):
    """A snapshot would be a VM without its sessions. QEMU says so by name, and the VM goes on."""
    vm = world.one()
    [answer] = vm.ask_monitor({"execute": "human-monitor-command", "arguments": {"command-line": "savevm one"}})
    world.log(f"QEMU: {answer}")
    if "migrat" not in answer.get("return", "").lower():
        raise Wrong(f"QEMU's answer to savevm: {answer}")
    vm.expect("clinfo -l | grep Platform")


def a_guest_crashes(world):
    """Its kernel panics while a process calls."""
    vm, session = hold(world, "two")
    one = world.one()
    one.expect("clinfo -l")
    gone(world, vm, session, lambda: vm.tell("echo c >/proc/sysrq-trigger"))
    one.expect("clinfo -l | grep Platform")


def a_vm_is_killed(world):
    vm, session = hold(world, "two")
    gone(world, vm, session, vm.kill)


def gone(world, vm, session, end):
    device = world.device_of(vm.name)
    end()
    # QEMU itself takes a moment.
    wait_until(HANG, "the VM ends", lambda: not vm.alive)
    began = time.monotonic()
    wait_until(HANG, "nothing of its VM is left", lambda: not alive(device) and not alive(session["server"]) and not world.sessions(vm=vm.name))
    world.log(f"device, API server and session had gone {time.monotonic() - began:.2f} s after the VM")
    # The node has open what it had after the death of another VM in its place.
    left = len(world.settle()), descriptors(world.node.pid)
    before = world.after_a_death or left
    if left[0] == before[0] and len(left[1]) != len(before[1]):
        raise Wrong(f"the node's descriptors after one VM's death: {sorted(before[1])}; after another's: {sorted(left[1])}")
    world.after_a_death = left


def a_device_is_killed(world):
    """The guest is told, and goes on; the next VM gets another device."""
    vm, _ = hold(world, "two")
    os.kill(world.device_of("two"), signal.SIGKILL)
    told(world, vm)
    if vm.run("clinfo -l | grep Platform").status == 0:
        raise Wrong("a VM without a device sees an accelerator")
    vm.end()
    world.vm("two").wait_for_boot().expect("clinfo -l | grep Platform")


def told(world, vm):
    began = time.monotonic()
    said = wait_until(HANG, "the guest is told", lambda: "lost" in (text := vm.expect("cat /tmp/held")) and text)
    # Memory of this session in the guest stays pinned: only a device could say that no process on the host uses it any more.
    world.log(f"the guest was told after {time.monotonic() - began:.2f} s: {said.splitlines()[-1]}")


def a_node_is_restarted(world):
    """The guest is told; what the node has started ends; a new VM attaches to the new node."""
    vm, session = hold(world, "one")
    device = world.device_of("one")
    left = [*world.node.kill(), device, session["server"]]
    told(world, vm)
    wait_until(HANG, "what the node has started ends", lambda: not any(map(alive, left)))
    for name in TENANTS:
        if name in world.vms:
            world.vms[name].end()
    world.node.start()
    vm = world.vm("one", "--memory", "512M").wait_for_boot()
    vm.expect("clinfo -l | grep Platform")
