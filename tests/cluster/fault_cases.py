"""What ends, stops or lies while claims are made and taken back."""

from harness.clock import YEAR, Clock
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


def api_server_away(cluster):
    """While it does not answer pods go on, and what was begun is finished when it does."""
    pods = Pods(cluster)
    for name, node in (("a", "n1"), ("r", "n2")):
        cluster.apply(claim(name, share=1, memory="8Mi"), pod(name, *WORK, claim_name=name, node=node))
        pods.wait_for_log(name, "right")
    tenants = {name: pods.tenant(name) for name in ("a", "r")}
    cluster.apply(claim("b", share=1, memory="8Mi"), pod("b", *WORK, claim_name="b", node="n2"))
    cluster.control.kill("apiserver")
    for name, tenant in tenants.items():
        before = pods.work("n1", tenant)
        wait_until(HANG, f"{name} goes on", lambda tenant=tenant, before=before: pods.work("n1", tenant) not in ([], before))
    cluster.start_api_server()
    pods.wait_for_log("b", "right")
    for name in ("a", "r"):
        grows(pods, name)
    pods.remove("a", "r", "b")
    pods.nothing_left()


def claim_in_use(cluster):
    """A claim that is in use cannot be edited; deleted, it is there until its pod is gone, which goes on."""
    pods = Pods(cluster)
    cluster.apply(claim("u", share=1, memory="8Mi"), pod("u", *WORK, claim_name="u", node="n2"))
    pods.wait_for_log("u", "right")
    tenant = pods.tenant("u")
    said = cluster.apply(claim("u", share=90, memory="8Mi"), check=False)
    if "immutable" not in said:
        raise Wrong(said)
    cluster.kubectl("delete", "resourceclaim", "u", "--wait=false")
    grows(pods, "u")
    if tenant not in cluster.grants("n1") or cluster.grants("n1")[tenant]["share"] != 1:
        raise Wrong(f"{cluster.grants('n1')}")
    cluster.kubectl("delete", "pod", "u", "--now")
    wait_until(HANG, "the claim is gone", lambda: not cluster.get("resourceclaim", "u"))
    pods.nothing_left()


def slices_by_hand(cluster):
    """Somebody's slices promise twice what there is, and both claims are allocated: the daemon refuses the second one."""
    pods = Pods(cluster)
    tell_plugin(cluster, "n1", "STOP")
    try:
        (own,) = [one for one in cluster.get("resourceslices")["items"] if one["spec"]["pool"]["name"] == "n1"]
        for device in own["spec"]["devices"]:
            if "opencl" in device["attributes"]:
                share = device["capacity"]["share"]
                share["value"] = share["requestPolicy"]["default"] = share["requestPolicy"]["validRange"]["max"] = "200"
        own["metadata"] = {"name": own["metadata"]["name"]}
        cluster.apply(own)
        for name in ("one", "two"):
            cluster.apply(claim(name, share=60, memory="8Mi"), pod(name, *WORK, claim_name=name, node="n1"))
            wait_until(HANG, f"{name} is allocated", lambda name=name: cluster.get("resourceclaim", name).get("status", {}).get("allocation"))
    finally:
        tell_plugin(cluster, "n1", "CONT")
    pods.wait_for_event("Refused", "would give away more of device")
    running = lambda: [name for name in ("one", "two") if pods.phase(name) == "Running"]
    wait_until(HANG, "one of them runs", running)
    (first,) = running()
    shares = [grant["share"] for grant in cluster.grants("n1").values()]
    if shares != [60]:
        raise Wrong(f"{shares}")
    pods.remove(first)
    pods.wait_for_log("two" if first == "one" else "one", "right")
    wait_until(HANG, "the plugin has published again", lambda: '"200"' not in str(cluster.devices("n1")).replace("'", '"'))
    pods.remove("one", "two")
    pods.nothing_left()


def clocks_differ(cluster):
    """The clock of the node with the device is ten years ahead: a claim's pod computes, and its grant has no end."""
    pods = Pods(cluster)
    clock = Clock(cluster.folder, "ahead", 10 * YEAR)
    cluster.nodes["n1"].kill("aviary")
    cluster.start_daemon("n1", environment=clock.environment())
    try:
        cluster.apply(claim("r", share=1, memory="8Mi"), pod("r", *WORK, claim_name="r", node="n2"))
        pods.wait_for_log("r", "right")
        grant = cluster.grants("n1")[pods.tenant("r")]
        if grant["expires_in"] is not None:
            raise Wrong(f"{grant}")
        pods.remove("r")
        pods.nothing_left()
    finally:
        cluster.nodes["n1"].kill("aviary")
        cluster.start_daemon("n1")


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
         "more than there is": more_than_there_is, "names in turn": names_in_turn, "API server away": api_server_away,
         "claim in use": claim_in_use, "slices by hand": slices_by_hand, "clocks differ": clocks_differ}
