"""Workloads as people have them: deployments, drained nodes, plugins that are replaced under load."""

from fault_cases import SLEEP, WORK, grows, plugin_of
from harness.process import HANG, Wrong, wait_until
from pods import Pods, claim, claim_template, pod

SHARE, FIT = 20, 5


def phases(cluster, label):
    """Names of a deployment's pods by phase; those that are to end do not count."""
    found = {"Running": set(), "Pending": set()}
    for one in cluster.get("pods", "-l", f"app={label}").get("items", []):
        if "deletionTimestamp" not in one["metadata"]:
            found.setdefault(one["status"].get("phase", ""), set()).add(one["metadata"]["name"])
    return found


def deployment(cluster):
    """Of six pods with a fifth of a device each five run; the sixth does when one goes."""
    pods = Pods(cluster)
    template = pod("x", *SLEEP)
    template["spec"].update(restartPolicy="Always", resourceClaims=[{"name": "part", "resourceClaimTemplateName": "fifth"}])
    template["spec"]["containers"][0]["resources"] = {"claims": [{"name": "part"}]}
    spec = {"replicas": FIT + 1, "selector": {"matchLabels": {"app": "six"}},
            "template": {"metadata": {"labels": {"app": "six"}}, "spec": template["spec"]}}
    cluster.apply(claim_template("fifth", share=SHARE, memory="8Mi"),
                  {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "six"}, "spec": spec})
    def counts():
        now = phases(cluster, "six")
        return len(now["Running"]), len(now["Pending"])
    wait_until(HANG, "five run and one waits", lambda: counts() == (FIT, 1))
    before = phases(cluster, "six")
    (waiting,) = before["Pending"]
    pods.wait_for_event(f"{waiting}: FailedScheduling", "cannot allocate all claims")
    cluster.kubectl("delete", "pod", min(before["Running"]), "--now")
    # The next one of the deployment may be first.
    wait_until(HANG, "five run again", lambda: counts() == (FIT, 1) and phases(cluster, "six")["Running"] != before["Running"])
    held = [one for one in cluster.get("resourceclaims")["items"] if one["status"].get("allocation")]
    if len(held) != FIT:
        raise Wrong(f"{len(held)} claims are allocated")
    cluster.kubectl("delete", "deployment", "six")
    cluster.kubectl("delete", "resourceclaimtemplate", "fifth")
    pods.nothing_left()


def drained(cluster):
    """A drained node's pods go, the other's are not missed; a cordoned node's devices get no claims until it is not."""
    pods = Pods(cluster)
    for name, node in (("stays", "n1"), ("goes", "n2"), ("keeps", "n2")):
        cluster.apply(claim(name, share=1, memory="8Mi"), pod(name, *WORK, claim_name=name, node=node))
        pods.wait_for_log(name, "right")
    cluster.kubectl("label", "pod", "keeps", "of=nobody")
    cluster.kubectl("drain", "n2", "--ignore-daemonsets", "--force", "--disable-eviction", "--pod-selector=of!=nobody")
    wait_until(HANG, "its pod is gone", lambda: not cluster.get("pod", "goes"))
    cluster.kubectl("uncordon", "n2")
    cluster.kubectl("cordon", "n1")
    wait_until(HANG, "the devices say so", lambda: "cordoned=:NoSchedule" in cluster.taints("n1"))
    cluster.apply(claim("late", share=1, memory="8Mi"), pod("late", *WORK, claim_name="late", node="n2"))
    pods.wait_for_event("late: FailedScheduling", "cannot allocate all claims")
    for name in ("stays", "keeps"):
        grows(pods, name)
    cluster.kubectl("uncordon", "n1")
    pods.wait_for_log("late", "right")
    pods.remove("stays", "goes", "keeps", "late")
    pods.nothing_left()


def replaced_under_load(cluster):
    """A rolling update of the plugins, while kubelets are killed, too: no session ends, and pods that are made meanwhile run."""
    pods = Pods(cluster)
    nodes = {"a": "n1", "r": "n2"}
    for name, node in nodes.items():
        cluster.apply(claim(name, share=1, memory="8Mi"), pod(name, *WORK, claim_name=name, node=node))
        pods.wait_for_log(name, "right")
    before = {node: plugin_of(cluster, node) for node in nodes.values()}
    cluster.kubectl("rollout", "restart", "daemonset/aviary-kubelet-plugin", "-n", "aviary")
    for number, node in enumerate(nodes.values()):
        name = f"new{number}"
        cluster.apply(claim(name, share=1, memory="8Mi"), pod(name, *WORK, claim_name=name, node=node))
        cluster.nodes[node].kill("kubelet")
        cluster.start_kubelet(node)
    for node, old in before.items():
        wait_until(HANG, f"another plugin runs on {node}", lambda node=node, old=old: set(plugin_of(cluster, node)) - set(old))
    cluster.kubectl("rollout", "status", "daemonset/aviary-kubelet-plugin", "-n", "aviary", f"--timeout={HANG:.0f}s")
    for name in (*nodes, "new0", "new1"):
        pods.wait_for_log(name, "right")
        grows(pods, name)
    pods.remove(*nodes, "new0", "new1")
    pods.nothing_left()


def extended(cluster):
    """A manifest as device plugins want it, with a limit and no claim, has a whole device; the next one waits until it goes."""
    pods = Pods(cluster)
    for name, command in (("old", SLEEP), ("next", ("compute", "3"))):
        made = pod(name, *command)
        made["spec"]["containers"][0]["resources"] = {"limits": {"aviary.dev/opencl": "1"}}
        cluster.apply(made)
        if name == "old":
            pods.wait("old", "Running")
    said = pods.inside("old", "compute", "300")
    if said != "held 300\nsums right\n":
        raise Wrong(said)
    (grant,) = [grant for name, grant in cluster.grants("n1").items() if name.startswith("k8s-")]
    if (grant["share"], grant["apis"]) != (100, ["opencl"]):
        raise Wrong(f"{grant}")
    pods.wait_for_event("next: FailedScheduling", "cannot allocate all claims")
    cluster.kubectl("delete", "pod", "old", "--now")
    pods.wait("next", "Succeeded")
    if pods.log("next") != "held 3\nsums right\n":
        raise Wrong(pods.log("next"))
    cluster.kubectl("delete", "pod", "next", "--now")
    pods.nothing_left()


CASES = {"extended resource": extended, "deployment": deployment, "drained": drained, "replaced under load": replaced_under_load}
