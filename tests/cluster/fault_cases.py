"""What ends, stops or lies while claims are made and taken back."""

from harness.process import HANG, Wrong, wait_until
from pods import Pods, claim, pod

SLEEP = ("sleep", "infinity")
# Computes again and again; ends with the first error.
WORK = ("/bin/sh", "-c", "while compute 3; do :; done; echo lost; exec sleep infinity")


def plugin_of(cluster, node):
    """The process of a node's plugin, by its number there."""
    found = cluster.nodes[node].call("sh", "-c", "grep -lz ^/aviary-kubelet-plugin$ /proc/[0-9]*/cmdline", check=False)
    return [place.split("/")[2] for place in found.split()]


def tell_plugin(cluster, node, how):
    (process,) = plugin_of(cluster, node)
    cluster.nodes[node].call("kill", f"-{how}", process)


def grows(pods, name):
    """A pod goes on computing."""
    before = len(pods.log(name))
    wait_until(HANG, f"{name} goes on", lambda: len(pods.log(name)) > before)
    if "lost" in pods.log(name):
        raise Wrong(pods.log(name)[-500:])


def plugin_and_kubelet_end(cluster):
    """Both are killed: pods go on, their claims end as always, and new ones run."""
    pods = Pods(cluster)
    cluster.apply(claim("a", share=1, memory="8Mi"), claim("r", share=1, memory="8Mi"),
                  pod("a", *WORK, claim_name="a", node="n1"), pod("r", *WORK, claim_name="r", node="n2"))
    pods.wait_for_log("a", "right")
    pods.wait_for_log("r", "right")
    for node in ("n1", "n2"):
        (before,) = plugin_of(cluster, node)
        tell_plugin(cluster, node, "KILL")
        cluster.nodes[node].kill("kubelet")
        cluster.start_kubelet(node)
        wait_until(HANG, "another plugin runs", lambda node=node, before=before: plugin_of(cluster, node) not in ([], [before]))
    grows(pods, "a")
    grows(pods, "r")
    cluster.apply(claim("b", share=1, memory="8Mi"), pod("b", *WORK, claim_name="b", node="n2"))
    pods.wait_for_log("b", "right")
    pods.remove("a", "r", "b")
    pods.nothing_left()


def daemon_ends(cluster):
    """Its own sessions are lost, a claim waits until it is back, and the grants are there; the other node's daemon is not missed."""
    pods = Pods(cluster)
    cluster.apply(claim("a", share=1, memory="8Mi"), pod("a", *WORK, claim_name="a", node="n1"))
    pods.wait_for_log("a", "right")
    cluster.nodes["n2"].kill("aviary")
    grows(pods, "a")
    cluster.apply(claim("r", share=1, memory="8Mi"), pod("r", *WORK, claim_name="r", node="n2"))
    pods.wait_for_event("r: Refused", "the node daemon of this machine does not answer")
    cluster.start_daemon("n2")
    pods.wait_for_log("r", "right")
    tenant = pods.tenant("a")
    cluster.nodes["n1"].kill("aviary")
    pods.wait_for_log("a", "lost")
    cluster.start_daemon("n1")
    if tenant not in cluster.grants("n1"):
        raise Wrong(f"{cluster.grants('n1')}")
    if "sums right" not in pods.inside("a", "compute", "1"):
        raise Wrong(pods.inside("a", "compute", "1"))
    pods.remove("a", "r")
    pods.nothing_left()


def far_node_is_silent(cluster):
    """The pod shows which node does not answer, and runs when it does."""
    pods = Pods(cluster)
    tell_plugin(cluster, "n1", "STOP")
    try:
        cluster.apply(claim("r", share=1, memory="8Mi"), pod("r", *WORK, claim_name="r", node="n2"))
        pods.wait_for_event("r: Refused", "node n1, which has the device, has not answered within 10s")
    finally:
        tell_plugin(cluster, "n1", "CONT")
    pods.wait_for_log("r", "right")
    pods.remove("r")
    pods.nothing_left()


def more_than_there_is(cluster):
    """Slices that promise what somebody else has: the daemon refuses, and the pod runs when it is free."""
    pods = Pods(cluster)
    tell_plugin(cluster, "n1", "STOP")
    try:
        cluster.aviary("n1", "grant", "hand", "--socket", "/run/aviary/grants/hand", "--share", "60")
        cluster.apply(claim("a", share=50, memory="8Mi"), pod("a", *WORK, claim_name="a", node="n1"))
        wait_until(HANG, "it is allocated", lambda: cluster.get("resourceclaim", "a").get("status", {}).get("allocation"))
    finally:
        tell_plugin(cluster, "n1", "CONT")
    pods.wait_for_event("a: Refused", "would give away more of device")
    cluster.aviary("n1", "revoke", "hand")
    pods.wait_for_log("a", "right")
    pods.remove("a")
    pods.nothing_left()


def names_in_turn(cluster):
    """Claims of one name, and a namespace that goes while its claim is in use: by UID, and nothing is left."""
    pods = Pods(cluster)
    tenants = []
    for node in ("n1", "n2"):
        cluster.apply(claim("x", share=1, memory="8Mi"), pod("x", *WORK, claim_name="x", node=node))
        pods.wait_for_log("x", "right")
        tenants.append(pods.tenant("x"))
        pods.remove("x")
    if tenants[0] == tenants[1]:
        raise Wrong(f"{tenants}")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "short"}})
    wait_until(HANG, "the namespace has its account", lambda: cluster.get("serviceaccount", "default", "-n", "short"))
    cluster.apply(claim("x", share=1, memory="8Mi", namespace="short"), pod("x", *SLEEP, claim_name="x", node="n2", namespace="short"))
    pods.wait("x", "Running", namespace="short")
    cluster.kubectl("delete", "namespace", "short")
    pods.nothing_left()


CASES = {"plugin and kubelet end": plugin_and_kubelet_end, "daemon ends": daemon_ends, "far node is silent": far_node_is_silent,
         "more than there is": more_than_there_is, "names in turn": names_in_turn}
