"""Pods of one node that share a device."""

import time

from harness.process import HANG, Wrong, wait_until
from pods import ACCELERATOR, Pods, claim, pod

HOLD = ("/bin/sh", "-c", "compute 300; exec sleep infinity")
# Of a quarter and three quarters; how far from it a window is at the most on a machine that has time, and on any.
WANTED, PART = 3, 0.03
BOUNDS = (1.5, 4.5)
WINDOW, WINDOWS = 5, 6


def two_pods(cluster):
    """256 and 512 MiB, 25 and 75 per cent of one device; a third claim waits, and runs when there is room."""
    pods = Pods(cluster)
    cluster.apply(claim("a", memory="256Mi", share=25), claim("b", memory="512Mi", share=75),
                  pod("a", *HOLD, claim_name="a", node="n1"), pod("b", *HOLD, claim_name="b", node="n1"))
    for name in "ab":
        pods.wait_for_log(name, "sums")
    said = {name: pods.log(name) for name in "ab"}
    # -4 is CL_MEM_OBJECT_ALLOCATION_FAILURE: the 257th MiB.
    if said != {"a": "held 256\nrefused -4\nsums right\n", "b": "held 300\nsums right\n"}:
        raise Wrong(f"{said}")
    grants = cluster.grants("n1")
    tenants = {name: pods.tenant(name) for name in "ab"}
    if {grants[tenants[name]]["share"] for name in "ab"} != {25, 75}:
        raise Wrong(f"{grants}")
    apart(pods, tenants)
    cluster.apply(claim("c", memory="1Mi", share=1), pod("c", *HOLD, claim_name="c", node="n1"))
    pods.wait_for_event("c: FailedScheduling", "cannot allocate all claims")
    if pods.phase("c") != "Pending":
        raise Wrong(pods.phase("c"))
    pods.remove("a")
    pods.wait("c", "Running")
    pods.remove("b", "c")
    pods.nothing_left()


def apart(pods, tenants):
    """Both are root; each sees its own socket and no other."""
    for name, other in (("a", "b"), ("b", "a")):
        if not pods.inside(name, "id").startswith("uid=0"):
            raise Wrong(pods.inside(name, "id"))
        found = pods.inside(name, "find", "/", "-name", "*.sock", "-o", "-name", "node.admin", "-o", "-name", "node.secret")
        if [line for line in found.splitlines() if line.startswith("/") and "No such" not in line] != ["/run/aviary/node.sock"]:
            raise Wrong(found)
        for place in (f"/run/aviary/grants/{tenants[other]}/node.sock", f"/run/aviary/../{tenants[other]}/node.sock"):
            said = pods.inside(name, "env", f"AVIARY_SERVER=unix:{place}", "compute", "1")
            if "held" in said or "sums right" in said:
                raise Wrong(f"{name} at {place}: {said}")


def time_by_share(cluster):
    """Busy both, they have the synthetic device 1 to 3."""
    pods = Pods(cluster)
    now = time.monotonic()
    work = ("accelerate", "1", "500000", "4", "0", str(now), str(now + 1000 * HANG))
    cluster.apply(claim("a", share=25, **ACCELERATOR), claim("b", share=75, **ACCELERATOR),
                  pod("a", *work, claim_name="a", node="n1"), pod("b", *work, claim_name="b", node="n1"))
    tenants = [pods.tenant(name) for name in "ab"]
    had = lambda: [pods.device_time("n1").get(tenant, 0) for tenant in tenants]  # noqa: E731
    wait_until(HANG, "both use the device", lambda: min(had()) > 0)
    ratios = []
    # On a busy machine a window may be of one of them alone for a moment: the nearest of several is told.
    while len(ratios) < WINDOWS and not (ratios and abs(ratios[-1] - WANTED) <= PART * WANTED):
        before = had()
        time.sleep(WINDOW)
        after = had()
        ratios.append((after[1] - before[1]) / max(after[0] - before[0], 1))
    nearest = min(ratios, key=lambda ratio: abs(ratio - WANTED))
    if not BOUNDS[0] < nearest < BOUNDS[1]:
        raise Wrong(f"device time 1 to {ratios}")
    print(f"    device time 1 to {nearest:.3f} in {WINDOW} s")
    pods.remove("a", "b")
    pods.nothing_left()


def whole_device(cluster):
    """A manifest that knows no claims has the whole device; a second one waits for it."""
    pods = Pods(cluster)
    def old(name):
        made = pod(name, *HOLD)
        made["spec"]["containers"][0]["resources"] = {"limits": {"aviary.dev/opencl": "1"}}
        return made
    cluster.apply(old("a"))
    pods.wait_for_log("a", "held 300\nsums right")
    cluster.apply(old("b"))
    pods.wait_for_event("b: FailedScheduling")
    pods.remove("a")
    pods.wait_for_log("b", "sums right")
    pods.remove("b")
    pods.nothing_left()


def own_node(cluster):
    """With `here` beside it a device is that of the pod's own node, or there is none; or it comes first where there is one."""
    pods = Pods(cluster)
    def near(name, share, first):
        made = claim(name, memory="8Mi", share=share)
        (wanted,) = made["spec"]["devices"]["requests"]
        here = {"name": "here", "exactly": {"deviceClassName": "here.aviary.dev"}}
        named = "part"
        if first:
            both = [{"name": place, **wanted["exactly"]} for place in ("local", "any")]
            wanted, named = {"name": "part", "firstAvailable": both}, "part/local"
        match = {"requests": ["here", named], "matchAttribute": "accel.aviary.dev/node"}
        made["spec"]["devices"] = {"requests": [here, wanted], "constraints": [match]}
        return made
    cluster.apply(near("bare", 1, False), pod("bare", *HOLD, claim_name="bare", node="n2"))
    pods.wait_for_event("bare: FailedScheduling")
    for name, first in (("own", False), ("first", True)):
        cluster.apply(near(name, 40, first), pod(name, *HOLD, claim_name=name))
        pods.wait_for_log(name, "sums right")
        if cluster.get("pod", name)["spec"]["nodeName"] != "n1":
            raise Wrong(f"{name} is not where its device is")
    cluster.apply(near("elsewhere", 10, True), pod("elsewhere", *HOLD, claim_name="elsewhere", node="n2"))
    pods.wait_for_log("elsewhere", "sums right")
    pods.remove("bare", "own", "first", "elsewhere")
    pods.nothing_left()


CASES = {"two pods": two_pods, "whole device": whole_device, "own node": own_node, "time by share": time_by_share}
