"""Claims of several requests, and of odd amounts and names."""

from harness.process import Wrong
from pods import DRIVER, Pods, claim, pod

SLEEP = ("sleep", "infinity")
SHARE, MEMORY = 10, {"opencl": "4Mi", "cuda": "64Mi"}
LONG = "n" * 253


def both(name):
    """A claim of parts of two devices of one node, by their classes."""
    requests = [{"name": api, "exactly": {"deviceClassName": f"{api}.aviary.dev", "capacity": {"requests": {"share": str(SHARE), "memory": memory}}}}
                for api, memory in MEMORY.items()]
    together = [{"requests": list(MEMORY), "matchAttribute": f"{DRIVER}/node"}]
    return {**claim(name, share=1), "spec": {"devices": {"requests": requests, "constraints": together}}}


def computes(pods, name, held):
    """By OpenCL with so many MiB of 9, and by CUDA."""
    said = pods.inside(name, "compute", "9")
    if said != f"held {held}\n" + ("refused -4\n" if held < 9 else "") + "sums right\n":
        raise Wrong(f"{name}: {said}")
    said = pods.inside(name, "vectors")
    if not said.endswith("ok vectors\n"):
        raise Wrong(f"{name}: {said}")


def several_requests(cluster):
    """Each request's class says what may be used of its device; the claim's pod has all of it, on either node, and with old manifests."""
    pods = Pods(cluster)
    for name, node in (("own", "n1"), ("far", "n2")):
        cluster.apply(both(name), pod(name, *SLEEP, claim_name=name, node=node))
        pods.wait(name, "Running")
        computes(pods, name, 4)
        grant = cluster.grants("n1")[pods.tenant(name)]
        if grant["apis"] != ["cuda", "opencl"] or grant["share"] != SHARE or len(grant["device_limits"]) != 2:
            raise Wrong(f"{grant}")
    pods.remove("own", "far")
    old = pod("old", *SLEEP)
    old["spec"]["containers"][0]["resources"] = {"limits": {"aviary.dev/opencl": "1", "aviary.dev/cuda": "1"}}
    cluster.apply(old)
    pods.wait("old", "Running")
    computes(pods, "old", 9)
    cluster.kubectl("delete", "pod", "old", "--now")
    pods.nothing_left()


def odd_claims(cluster):
    """Amounts between steps and below all are the next ones, more than there is waits, and the longest name is one."""
    pods = Pods(cluster)
    for name, share, memory, expected in (("half", "500m", "1", (1, 1)), ("none", "0", "2Mi", (None, 2)), (LONG, "1", "3Mi", (1, 3))):
        made = pod("odd", *SLEEP, claim_name=name, node="n1")
        cluster.apply(claim(name, share=share, memory=memory), made)
        pods.wait("odd", "Running")
        computed = pods.inside("odd", "compute", "9")
        if computed != f"held {expected[1]}\nrefused -4\nsums right\n" or cluster.grants("n1")[pods.tenant(name)]["share"] != expected[0]:
            raise Wrong(f"{name}: {computed} {cluster.grants('n1')[pods.tenant(name)]}")
        pods.remove("odd", name)
    cluster.apply(claim("odd", share="1e30", memory="1e30"), pod("odd", *SLEEP, claim_name="odd", node="n1"))
    pods.wait_for_event("odd: FailedScheduling", "capacity")
    pods.remove("odd")
    pods.nothing_left()


CASES = {"several requests": several_requests, "odd claims": odd_claims}
