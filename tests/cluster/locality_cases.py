"""The templates that are shipped: accelerators of the own node only, of it first, or of any."""

import json
import shutil

from fault_cases import SLEEP
from harness.process import HANG, ROOT, Wrong, wait_until
from pods import Pods, pod

CLASS = "opencl.aviary.dev"
MANY, LOCAL = 40, 24
# Shares, of which so many fit a device.
SMALL, SHARE, FIT = 2, 14, 7


def templates(cluster, share):
    """The shipped ones with amounts of the test's own, as the page says."""
    folder = cluster.folder / "templates"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "kubernetes/deploy/templates", folder / "shipped")
    amounts = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": "1Mi", "share": str(share)}}}
    def patch(name, *places):
        steps = [{"op": "replace", "path": f"{place}/{key}", "value": value} for place in places for key, value in amounts.items()]
        return {"target": {"kind": "ResourceClaimTemplate", "name": name}, "patch": json.dumps(steps)}
    requests = "/spec/spec/devices/requests"
    whole = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["shipped"], "patches": [
        patch("local", f"{requests}/1/exactly"), patch("any", f"{requests}/0/exactly"),
        patch("near", f"{requests}/1/firstAvailable/0", f"{requests}/1/firstAvailable/1")]}
    (folder / "kustomization.yaml").write_text(json.dumps(whole))
    cluster.kubectl("delete", "resourceclaimtemplate", "--all")
    cluster.kubectl("apply", "-k", folder)


def with_template(name, template, *, node=None, cpu=None):
    made = pod(name, *SLEEP, node=node)
    made["metadata"]["labels"] = {"with": template}
    made["spec"]["resourceClaims"] = [{"name": "part", "resourceClaimTemplateName": template}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "part"}], **({"requests": {"cpu": cpu}} if cpu else {})}
    return made


def places(cluster, template):
    """Where each pod runs, and where its device is; only pods that run."""
    pools = {}
    for claim in cluster.get("resourceclaims").get("items", []):
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
            if result["device"] != "here":
                pools[claim["metadata"]["name"]] = result["pool"]
    return {one["metadata"]["name"]: (one["spec"]["nodeName"], pools[one["status"]["resourceClaimStatuses"][0]["resourceClaimName"]])
            for one in cluster.get("pods", "-l", f"with={template}").get("items", []) if one["status"].get("phase") == "Running"}


def processor_for(cluster, node, count):
    """What each of so many pods may ask for, so that they fit this node and no further one does."""
    def milli(text):
        return int(text[:-1]) if text.endswith("m") else 1000 * int(text)
    room = milli(cluster.get("node", node)["status"]["allocatable"]["cpu"])
    for one in cluster.get("pods", "-A", "--field-selector", f"spec.nodeName={node}")["items"]:
        room -= sum(milli(part["resources"].get("requests", {}).get("cpu", "0m")) for part in one["spec"]["containers"])
    each = room // count
    if room // each != count:
        raise Wrong(f"{room} thousandths do not hold {count} pods and no more")
    return f"{each}m"


def near_of_one(cluster):
    """Of 40 pods all that fit the node with the accelerator are there, the others use it from the other node; `local` ones wait."""
    pods = Pods(cluster)
    templates(cluster, SMALL)
    cpu = processor_for(cluster, "n1", LOCAL)
    cluster.apply(*(with_template(f"near-{number}", "near", cpu=cpu) for number in range(MANY)))
    wait_until(HANG, f"{MANY} pods run", lambda: len(places(cluster, "near")) == MANY)
    found = list(places(cluster, "near").values())
    counts = {place: found.count(place) for place in set(found)}
    if counts != {("n1", "n1"): LOCAL, ("n2", "n1"): MANY - LOCAL}:
        raise Wrong(f"pods by node and node of the device: {counts}")
    for node in ("n1", "n2"):
        name = next(name for name, (at, _) in places(cluster, "near").items() if at == node)
        if "sums right" not in pods.inside(name, "compute", "1"):
            raise Wrong(f"{name} on {node} does not compute")
    cluster.apply(with_template("bound", "local", node="n2"))
    pods.wait_for_event("bound: FailedScheduling", "cannot allocate all claims")
    cluster.kubectl("delete", "pods", "--all", "--now")
    pods.nothing_left()


def near_of_two(cluster):
    """With accelerators on both nodes no `near` pod has another node's while its own has room; then it has."""
    pods = Pods(cluster)
    cluster.nodes["n2"].kill("aviary")
    cluster.start_daemon("n2", accelerated=True)
    try:
        has_opencl = lambda: any("opencl" in device["attributes"] for device in cluster.devices("n2"))  # noqa: E731
        wait_until(HANG, "n2 has an accelerator, too", has_opencl)
        templates(cluster, SHARE)
        # One less on the first node: the last one of the second has room there.
        pinned = [with_template(f"near-{node}-{number}", "near", node=node) for node, count in (("n1", FIT - 1), ("n2", FIT)) for number in range(count)]
        cluster.apply(*pinned)
        wait_until(HANG, "all run", lambda: len(places(cluster, "near")) == len(pinned))
        if remote := {name: place for name, place in places(cluster, "near").items() if place[0] != place[1]}:
            raise Wrong(f"{remote}")
        cluster.apply(with_template("last", "near", node="n2"))
        wait_until(HANG, "the last one runs", lambda: "last" in places(cluster, "near"))
        if places(cluster, "near")["last"] != ("n2", "n1"):
            raise Wrong(f"{places(cluster, 'near')}")
        cluster.apply(with_template("bound", "local", node="n2"))
        pods.wait_for_event("bound: FailedScheduling", "cannot allocate all claims")
        cluster.kubectl("delete", "pods", "--all", "--now")
        pods.nothing_left()
    finally:
        cluster.kubectl("delete", "resourceclaimtemplate", "--all")
        cluster.nodes["n2"].kill("aviary")
        cluster.start_daemon("n2")
        wait_until(HANG, "n2 has none any more", lambda: len(cluster.devices("n2")) == 1)


CASES = {"near, one accelerator": near_of_one, "near, two accelerators": near_of_two}
