"""Devices that are lost, and nodes whose devices are to be left."""

import json

from fault_cases import WORK, grows
from harness.process import HANG, Wrong, wait_until
from pods import Pods, claim, pod

DEVICE = {"device_class": "accel.aviary.dev", "device": "testapi accelerator"}
LOST = "unhealthy=lost"
# What the DaemonSet of these tests has as --grace.
GRACE = 10
SLEEP_AND_USE = ("/bin/sh", "-c", "accelerate 1 1000000 1 0 0 9999999999 & exec sleep infinity")


def evicted_after_grace(cluster):
    """The vendor's library goes: its devices get no claims at once; the pods that use them, on both nodes, go after the grace, and those
    of other devices stay."""
    pods = Pods(cluster)
    cluster.apply(claim("other", share=1, memory="8Mi"), pod("other", *WORK, claim_name="other", node="n2"))
    pods.wait_for_log("other", "right")
    for name, node in (("a", "n1"), ("r", "n2")):
        cluster.apply(claim(name, share=10, **DEVICE), pod(name, *SLEEP_AND_USE, claim_name=name, node=node))
        pods.wait(name, "Running")
    library = cluster.folder / "images/programs/libtestapi.so.1"
    away = library.rename(library.with_name("away"))
    try:
        wait_until(HANG, "the device says so", lambda: f"{LOST}:NoSchedule" in cluster.taints("n1"))
        cluster.apply(claim("late", share=10, **DEVICE), pod("late", *SLEEP_AND_USE, claim_name="late"))
        pods.wait_for_event("late: FailedScheduling")
        for name in ("a", "r"):
            wait_until(HANG, f"{name} is evicted", lambda name=name: not cluster.get("pod", name))
        added = {one["effect"]: one["timeAdded"] for device in cluster.devices("n1") for one in device.get("taints", []) if one.get("value") == "lost"}
        times = {effect: int(cluster.nodes["n1"].call("date", "-u", "-d", stamp, "+%s")) for effect, stamp in added.items()}
        # Times are cut to seconds.
        if times["NoExecute"] - times["NoSchedule"] < GRACE - 1:
            raise Wrong(f"{added}")
        grows(pods, "other")
    finally:
        away.rename(library)
    wait_until(HANG, "the device is well", lambda: not cluster.taints("n1"))
    pods.wait("late", "Running")
    pods.remove("late", "other", "a", "r")
    pods.nothing_left()


def evacuated(cluster):
    """Sessions are parked before pods are evicted; one that tolerates it comes back with the right result."""
    pods = Pods(cluster)
    stays = claim("stays", share=1, memory="8Mi")
    # Without its effect it would not count.
    tolerate = [{"key": "accel.aviary.dev/evacuated", "operator": "Exists", "effect": "NoExecute"}]
    stays["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = tolerate
    cluster.apply(stays, claim("goes", share=1, memory="8Mi"))
    idle = ("/bin/sh", "-c", "busybox mkfifo /tmp/go; compute 3 /tmp/go; exec sleep infinity")
    for name in ("stays", "goes"):
        cluster.apply(pod(name, *idle, claim_name=name, node="n2"))
        pods.wait_for_log(name, "held 3")
    tenants = {name: pods.tenant(name) for name in ("stays", "goes")}
    cluster.kubectl("annotate", "node", "n1", "aviary.dev/evacuate=")
    try:
        wait_until(HANG, "the pod that does not tolerate it is gone", lambda: not cluster.get("pod", "goes"))
        events = {one["involvedObject"]["name"] for one in cluster.get("events")["items"] if one["reason"] == "Parked"}
        if not {"stays", "goes"} <= events:
            raise Wrong(f"parked were {events}; {json.dumps(cluster.get('events')['items'])[-3000:]}")
        (session,) = pods.sessions("n1", tenants["stays"])
        if not session.get("parked"):
            raise Wrong(f"{session}")
    finally:
        cluster.kubectl("annotate", "node", "n1", "aviary.dev/evacuate-")
    wait_until(HANG, "the devices may be used again", lambda: not cluster.taints("n1"))
    pods.inside("stays", "/bin/sh", "-c", "echo >/tmp/go")
    pods.wait_for_log("stays", "sums right")
    pods.remove("stays", "goes")
    pods.nothing_left()


CASES = {"evicted after its grace": evicted_after_grace, "evacuated": evacuated}
