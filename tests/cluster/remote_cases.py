"""Pods of a node without an accelerator, on another node's."""

import difflib
import time

from harness.process import HANG, ROOT, Wrong, run, wait_until
from images import CUDA_PROGRAMS
from pods import ACCELERATOR, Pods, claim, pod

# Long enough that everything that waits for the other node has noticed.
AWAY = 30
EXPECTED = ROOT / "apis/cuda/tests/expected"


def another_node(cluster):
    """The pod computes on the other node, with no credential and no network of its own; the far node charges the claim's tenant."""
    pods = Pods(cluster)
    cluster.apply(claim("r", memory="64Mi", share=10),
                  pod("r", "/bin/sh", "-c", "clinfo -l; compute 100; exec sleep infinity", claim_name="r", node="n2"))
    pods.wait_for_log("r", "sums")
    said = pods.log("r")
    if "held 64\nrefused -4\nsums right\n" not in said or "pthread" not in said:
        raise Wrong(said)
    tenant = pods.tenant("r")
    near, far = cluster.grants("n2")[tenant], cluster.grants("n1")[tenant]
    if far["entrance"] != {"key": near["via"]["key"]} or far["share"] != 10:
        raise Wrong(f"{near} {far}")
    found = pods.inside("r", "/bin/sh", "-c", "grep -rlE 'PRIVATE KEY|BEGIN CERT' /run /etc /opt /tmp /usr/bin 2>/dev/null; echo searched")
    if found != "searched\n":
        raise Wrong(found)
    alone(cluster, pods)
    if "sums right" not in pods.inside("r", "compute", "1"):
        raise Wrong("nothing is computed without an interface")
    pods.remove("r")
    pods.nothing_left()


def alone(cluster, pods):
    """Takes the pod's interface down, from outside."""
    if "no interface" not in pods.inside("r", "/bin/sh", "-c", "ip link show eth0 || echo no interface"):
        tenant_pod = cluster.get("pod", "r")["status"]["podIP"]
        if not tenant_pod:
            raise Wrong("the pod has no address")
        cluster.nodes["n2"].call("sh", "-ec", TAKE_DOWN, "sh", tenant_pod)
    if "state UP" in pods.inside("r", "ip", "link", "show", "eth0"):
        raise Wrong("its interface is up")


# By the address that it has: the namespace of a pod has no name that tests know.
TAKE_DOWN = (
    'for at in /run/netns/*; do if nsenter --net=$at ip addr | grep -q "inet $1/"; then nsenter --net=$at ip link set eth0 down; fi; done'
)


def without_the_link(cluster):
    """Half a minute without network between the nodes does not end a program."""
    pods = Pods(cluster)
    now = time.monotonic()
    cluster.apply(claim("h", share=10, **ACCELERATOR),
                  pod("h", "accelerate", "1", "1000000", "1", "0", str(now), str(now + 1000 * HANG), claim_name="h", node="n2"))
    tenant = pods.tenant("h")
    calls = lambda: sum(one["counters"].get("calls", 0) for one in pods.sessions("n1", tenant))  # noqa: E731
    wait_until(HANG, "the far node has a session of the claim", calls)
    link = ("nsenter", "-t", str(cluster.control.init), "-n", "--", "ip", "link", "set", "to-n2")
    run([*link, "down"])
    wait_until(HANG, "the far node misses it", lambda: any("away_ms" in one for one in pods.sessions("n1", tenant)))
    time.sleep(AWAY)
    before = calls()
    run([*link, "up"])
    wait_until(HANG, "calls go on", lambda: calls() > before or pods.phase("h") != "Running")
    if pods.phase("h") != "Running":
        raise Wrong(f"{pods.phase('h')} {pods.log('h')}")
    wait_until(HANG, "n2 is ready", lambda: cluster.is_ready("n2"))
    pods.remove("h")
    pods.nothing_left()


def cuda(cluster):
    """Programs of CUDA's driver API print on the node without a driver what they print on the reference driver."""
    pods = Pods(cluster)
    each = "; ".join(f"echo = {name}; {name}" for name in CUDA_PROGRAMS)
    cluster.apply(claim("cuda", memory="1Gi", share=10, device_class="cuda.aviary.dev"),
                  pod("cuda", "/bin/sh", "-c", each, claim_name="cuda", node="n2"))
    pods.wait("cuda", "Succeeded", "Failed")
    said = pods.log("cuda")
    expected = "".join(f"= {name}\n{(EXPECTED / f'{name}.txt').read_text(encoding='utf-8')}" for name in CUDA_PROGRAMS)
    if said != expected:
        raise Wrong("\n".join(difflib.unified_diff(expected.splitlines(), said.splitlines(), lineterm="", n=0))[:3000])
    pods.remove("cuda")
    pods.nothing_left()


CASES = {"another node": another_node, "cuda": cuda, "without the link": without_the_link}
