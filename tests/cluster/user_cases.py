"""Pods in user namespaces of their own: a claim is known by its socket, whoever its processes are."""

from harness.process import HANG, Skipped, Wrong, wait_until
from pods import Pods, claim, pod

SLEEP = ("sleep", "infinity")
# As root of a namespace that maps one user, and as a user whom no namespace of the node's knows.
ROOT_THERE, NOBODY = ("unshare", "-U", "-r"), ("unshare", "-U")


def user_namespaces(cluster):
    """Two pods that make user namespaces, on the device's node and on the other one: each has its own claim's part, and no more."""
    pods = Pods(cluster)
    nodes, parts = {"a": "n1", "b": "n1", "r": "n2"}, {"a": 2, "b": 3, "r": 4}
    for name, node in nodes.items():
        cluster.apply(claim(name, share=1, memory=f"{parts[name]}Mi"), pod(name, *SLEEP, claim_name=name, node=node))
    for name in nodes:
        pods.wait(name, "Running")
    for name, part in parts.items():
        for kind, uid in ((ROOT_THERE, "uid=0"), (NOBODY, "uid=65534")):
            who = pods.inside(name, *kind, "id")
            if not who.startswith(uid):
                raise Wrong(who)
            said = pods.inside(name, *kind, "compute", "9")
            if said != f"held {part}\nrefused -4\nsums right\n":
                raise Wrong(f"{name} by {kind}: {said}")
    # Whose session it is while such a process has one.
    waits = ("/bin/sh", "-c", "/bin/busybox mkfifo /tmp/go; compute 1 /tmp/go")
    cluster.apply(claim("w", share=1, memory="8Mi"), pod("w", *ROOT_THERE, *waits, claim_name="w", node="n1"))
    pods.wait_for_log("w", "held 1")
    if [one["tenant"] for one in cluster.report("n1")["sessions"]] != [pods.tenant("w")]:
        raise Wrong(f"{cluster.report('n1')['sessions']}")
    pods.remove(*nodes, "w")
    pods.nothing_left()


# What the kubelet says of containerd before version 2.
TOO_OLD = "runtime does not support user namespaces"


def pod_with_users_of_its_own(cluster):
    """`hostUsers: false`: the runtime makes the namespace; where it cannot, the kubelet says so."""
    pods = Pods(cluster)
    cluster.apply(claim("u", share=1, memory="2Mi"), pod("u", "compute", "9", claim_name="u", node="n1", more={"hostUsers": False}))
    refused = lambda: [one for one in pods.events() if one.startswith("u:") and TOO_OLD in one]  # noqa: E731
    wait_until(HANG, "the pod has ended or is refused", lambda: pods.phase("u") == "Succeeded" or refused())
    said = pods.log("u") if pods.phase("u") == "Succeeded" else None
    pods.remove("u")
    pods.nothing_left()
    if said is None:
        raise Skipped(f"this containerd makes no pods with hostUsers: false: {TOO_OLD}")
    if said != "held 2\nrefused -4\nsums right\n":
        raise Wrong(said)


CASES = {"hostUsers": pod_with_users_of_its_own, "user namespaces": user_namespaces}
