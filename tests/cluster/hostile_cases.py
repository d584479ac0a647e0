"""What accounts must not do: each by the account that would."""

import base64
import json

from harness.process import HANG, Wrong, wait_until
from pods import DRIVER, Pods, claim, claim_template, pod

SLEEP = ("sleep", "infinity")


class Plugin:
    """The account of a node's plugin, taken over: a token of its pod, with which kubectl does what it is told."""

    def __init__(self, cluster, node):
        self.cluster, self.node = cluster, node
        pods = cluster.get("pods", "-n", "aviary")["items"]
        (own,) = [one["metadata"]["name"] for one in pods if one["spec"]["nodeName"] == node]
        token = cluster.kubectl("create", "token", "aviary-kubelet-plugin", "-n", "aviary", "--bound-object-kind", "Pod",
                                "--bound-object-name", own).strip()
        config = json.loads((cluster.folder / "admin.kubeconfig").read_text())
        config["users"] = [{"name": "u", "user": {"token": token}}]
        self.account = f"plugin-{node}"
        (cluster.folder / f"{self.account}.kubeconfig").write_text(json.dumps(config))

    def tries(self, *words, given=None):
        return self.cluster.kubectl(*words, given=given, account=self.account, check=False)

    def writes_status(self, name, entry):
        """An entry into a claim's status, as the plugin does it."""
        whole = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"},
                 "status": {"devices": [entry]}}
        return self.tries("apply", "--server-side", "--force-conflicts", "--subresource=status", "--field-manager=x", "-f", "-",
                          given=json.dumps(whole))


def refused(said, *words):
    missing = [word for word in words if word not in said]
    if missing:
        raise Wrong(f"expected {missing} in: {said}")


def slices_of_others(cluster):
    """A plugin publishes its own pool of its own driver, and nothing else."""
    plugin = Plugin(cluster, "n2")
    def slice_of(driver, pool, device=None, **place):
        return json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "forged"},
                           "spec": {"driver": driver, "pool": {"name": pool, "generation": 99, "resourceSliceCount": 1},
                                    "devices": [{"name": "forged", **(device or {})}], **(place or {"allNodes": True})}})
    for document, word in (
        (slice_of(DRIVER, "n1"), "pool n1 is not that of node n2"),
        (slice_of("gpu.example.com", "n2"), "driver gpu.example.com is not the plugin's"),
        (slice_of(DRIVER, "n2", nodeName="n1"), "the slice is of node n1"),
        (slice_of(DRIVER, "n2", {"attributes": {"node": {"string": "n1"}}}), "a device says that it is of another node than n2"),
        (slice_of(DRIVER, "n2", {"attributes": {f"{DRIVER}/node": {"string": "n1"}}}), "a device says that it is of another node than n2"),
        (slice_of(DRIVER, "n2", {"nodeName": "n1"}, perDeviceNodeSelection=True), "a device says that it is of another node than n2"),
    ):
        refused(plugin.tries("create", "-f", "-", given=document), "denied request", word)
    (own,) = [one for one in cluster.get("resourceslices")["items"] if one["spec"]["pool"]["name"] == "n1"]
    name = own["metadata"]["name"]
    refused(plugin.tries("delete", "resourceslice", name), "denied request", "pool n1 is not that of node n2")
    patch = json.dumps([{"op": "replace", "path": "/spec/devices", "value": []}])
    refused(plugin.tries("patch", "resourceslice", name, "--type=json", "-p", patch), "denied request", "pool n1 is not that of node n2")
    for words in (("get", "secrets", "-A"), ("create", "token", "default"), ("delete", "node", "n1"), ("get", "pods", "-A")):
        refused(plugin.tries(*words), "orbidden")


def status_of_others(cluster):
    """A plugin answers for its own devices, asks for its own pods, and a pod's account writes nothing."""
    pods = Pods(cluster)
    cluster.apply(claim("own", share=1, memory="1Mi"), claim("far", share=1, memory="1Mi"),
                  pod("own", *SLEEP, claim_name="own", node="n1"), pod("far", *SLEEP, claim_name="far", node="n2"))
    pods.wait("own", "Running")
    pods.wait("far", "Running")
    pod_node, device_node = Plugin(cluster, "n2"), Plugin(cluster, "n1")
    def entry(name, **more):
        (result,) = cluster.get("resourceclaim", name)["status"]["allocation"]["devices"]["results"]
        return {**{key: result[key] for key in ("driver", "pool", "device", "shareID")}, **more}
    access = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "ClaimAccess", "key": "0" * 64}
    ready = [{"type": "Ready", "status": "True", "reason": "Forged", "message": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    # n2 has neither the pod nor the device of this claim.
    refused(pod_node.writes_status("own", entry("own", data=access)), "denied request", "neither the device nor the pod is of node n2")
    refused(pod_node.writes_status("far", entry("far", conditions=ready)), "denied request", "only the node of the device")
    refused(device_node.writes_status("far", entry("far", data=access)), "denied request", "only the node of the pod")
    token = cluster.kubectl("create", "token", "default").strip()
    config = json.loads((cluster.folder / "admin.kubeconfig").read_text())
    config["users"] = [{"name": "u", "user": {"token": token}}]
    (cluster.folder / "pod.kubeconfig").write_text(json.dumps(config))
    patch = json.dumps({"status": {"devices": [entry("far", data=access)]}})
    said = cluster.kubectl("patch", "resourceclaim", "far", "--subresource=status", "--type=merge", "-p", patch, account="pod", check=False)
    refused(said, "orbidden")
    if cluster.grants("n1")[pods.tenant("far")]["entrance"]["key"] == "0" * 64:
        raise Wrong("the key was changed")
    pods.remove("own", "far")
    pods.nothing_left()


def parameters(cluster):
    """Unknown fields and wrong values are refused when they are written; what the class forbids when the claim is prepared."""
    for given, word in (
        ({"cpa": "30%"}, "unknown field cpa"), ({"cap": "130%"}, "cap is a percentage"), ({"cap": 30}, "cap is a percentage"),
        ({"sessions": 0}, "sessions and threads are whole numbers"), ({"limits": {"device_memory": "1Gi"}}, "ask for it as capacity"),
        ({"kind": "Other"}, "expected apiVersion"), ({"apis": []}, "apis is a list of one or more"),
        ({"cap": "0.0%"}, "cap is a percentage"), ({"cap": "100.5%"}, "cap is a percentage"), ({"apis": [1]}, "apis is a list of one or more"),
        ({"priority": "1"}, "priority is a whole number"), ({"priority": 1 << 31}, "priority is a whole number"),
        ({"functions": ["clFinish"]}, "functions has allow and deny"), ({"functions": {"alow": []}}, "functions has allow and deny"),
        ({"functions": {"deny": "clFinish"}}, "functions has allow and deny"), ({"limits": {"kernel_launches": "2 MB"}}, "limits are amounts"),
        ({"limits": {"kernel_launches": -1}}, "limits are amounts"), ({"limits": "1"}, "denied request"),
    ):
        refused(cluster.apply(claim("wrong", share=1, parameters=given), check=False), "denied request", word)
        refused(cluster.apply(claim_template("wrong", share=1, parameters=given), check=False), "denied request", word)
    narrow = cluster.get("deviceclass", "opencl.aviary.dev")
    narrow["metadata"] = {"name": "narrow"}
    del narrow["spec"]["extendedResourceName"]
    narrow["spec"]["config"][0]["opaque"]["parameters"]["cap"] = "50%"
    pods = Pods(cluster)
    fitting = {"cap": "40%", "sessions": 3, "priority": -1, "functions": {"deny": ["clCreatePipe"]}, "limits": {"kernel_launches": "1k"}}
    cluster.apply(narrow, claim("wide", share=1, memory="1Mi", device_class="narrow", parameters={"cap": "60%"}),
                  claim("first", share=1, memory="1Mi", device_class="narrow", parameters={"priority": 1}),
                  pod("first", *SLEEP, claim_name="first", node="n1"), claim("fits", share=1, memory="1Mi", device_class="narrow", parameters=fitting),
                  pod("wide", *SLEEP, claim_name="wide", node="n1"), pod("fits", *SLEEP, claim_name="fits", node="n1"))
    pods.wait_for_event("wide: Refused", "AcceleratorConfig.cap: 60%: its class allows 50% at the most")
    pods.wait_for_event("first: Refused", "AcceleratorConfig.priority: 1: its class allows 0 at the most")
    pods.wait("fits", "Running")
    grant = cluster.grants("n1")[pods.tenant("fits")]
    if (grant["cap"], grant["apis"]) != (400, ["opencl"]):
        raise Wrong(f"{grant}")
    pods.remove("wide", "first", "fits")
    cluster.kubectl("delete", "deviceclass", "narrow")
    pods.nothing_left()


def host_folders(cluster):
    """A pod with the folder of all sockets is refused by the policy that the page names; without root the folder's mode does."""
    pods = Pods(cluster)
    cluster.apply(claim("a", share=1, memory="1Mi"), pod("a", *SLEEP, claim_name="a", node="n1"))
    pods.wait("a", "Running")
    tenant = pods.tenant("a")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "guarded", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    cluster.apply(namespace)
    folder = {"volumes": [{"name": "all", "hostPath": {"path": "/run/aviary"}}]}
    def thief(**more):
        made = pod("thief", "/bin/sh", "-c", f"ls /all/grants; ls /all/grants/{tenant}; stat /all/grants/{tenant}/node.sock; echo >/all/node.admin; exit 0", node="n1", more={**folder, **more})
        made["spec"]["containers"][0]["volumeMounts"] = [{"name": "all", "mountPath": "/all"}]
        return made
    guarded = thief()
    guarded["metadata"]["namespace"] = "guarded"
    wait_until(HANG, "the namespace has its account", lambda: cluster.get("serviceaccount", "default", "-n", "guarded"))
    refused(cluster.apply(guarded, check=False), "violates PodSecurity", "hostPath")
    cluster.apply(thief(securityContext={"runAsUser": 12345, "runAsGroup": 12345}))
    pods.wait("thief", "Succeeded")
    said = pods.log("thief")
    if said.count("ermission denied") < 4:
        raise Wrong(said)
    cluster.kubectl("delete", "namespace", "guarded")
    pods.remove("a", "thief")
    pods.nothing_left()


def forged(cluster):
    """A pod that changes its variables reaches nothing else, as root and as another user."""
    pods = Pods(cluster)
    for name, more in (("root", {}), ("user", {"securityContext": {"runAsUser": 12345}})):
        cluster.apply(claim(name, share=1, memory="2Mi"), pod(name, *SLEEP, claim_name=name, node="n1", more=more))
        pods.wait(name, "Running")
        said = pods.inside(name, "compute", "3")
        if not said.startswith("held 2\n"):
            raise Wrong(said)
        for value in ("unix:/run/aviary/node.admin", "unix:/run/aviary/../node.sock", "10.250.0.11:7800", "unix:/run/aviary/grants/x/node.sock"):
            said = pods.inside(name, "env", f"AVIARY_SERVER={value}", "AVIARY_TENANT=other", f"AVIARY_TOKEN={base64.b64encode(b'x')}", "compute", "3")
            if "held" in said:
                raise Wrong(f"{value}: {said}")
    pods.remove("root", "user")
    pods.nothing_left()


CASES = {"slices of others": slices_of_others, "status of others": status_of_others, "parameters": parameters,
         "host folders": host_folders, "forged": forged}
