"""Kubernetes' own scheduler, without anything of Aviary: how it comes to promise a part of a device twice.

The scheduler keeps what it is about to write as taken. When the write fails, it takes that back. But a write whose answer is lost, as when
the API server is killed, may have been made: until the scheduler's watch tells of it, the part counts as free, and is given again.
"""

import contextlib
import json
import tempfile

from cluster import HERE, Cluster
from harness.process import HANG, Wrong, wait_until
from pods import Pods
from volume_nodes import stand_in

DRIVER, NODE, DEVICE = "parts.example.com", "w1", "part"
PORT = 8001
SHARE = 60


class Bare(Cluster):
    """A control plane, a scheduler behind a proxy, and a node that nobody runs."""

    def __init__(self, folder):
        super().__init__(folder)
        self.nodes = {}
        self.release = self.folder / "release"

    def up(self):
        self.folder.chmod(0o755)
        self.authority.make()
        self.control.start()
        self.make_bridge()
        self.start_control()
        stand_in(self, NODE)
        # What the controller manager makes sooner or later.
        self.kubectl("create", "serviceaccount", "default", check=False)
        policy = {"default": "100", "validRange": {"min": "0", "max": "100", "step": "1"}}
        device = {"name": DEVICE, "allowMultipleAllocations": True, "capacity": {"share": {"value": "100", "requestPolicy": policy}}}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}, "devices": [device]}
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        self.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "slice"}, "spec": spec},
                   {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}})

    @staticmethod
    def manager_options():
        return ("--controllers=resourceclaim-controller,serviceaccount-controller,serviceaccount-token-controller",)

    def scheduler_config(self):
        """The proxy loses the answer about the claim `first`."""
        pki = self.authority.folder
        self.control.spawn("proxy", "python3", HERE / "losing_proxy.py", PORT, "10.250.0.1", pki / "ca.crt", pki / "scheduler.crt",
                           pki / "scheduler.key", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/first/status", self.release)
        found = json.loads((self.folder / "scheduler.kubeconfig").read_text())
        found["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{PORT}"}
        found["users"][0]["user"] = {}
        (self.folder / "proxied.kubeconfig").write_text(json.dumps(found))
        return self.folder / "proxied.kubeconfig"


def claim_and_pod(name):
    capacity = {"requests": {"share": str(SHARE)}}
    wanted = {"name": "part", "exactly": {"deviceClassName": DRIVER, "capacity": capacity}}
    container = {"name": "none", "image": "none", "resources": {"claims": [{"name": "part"}]}}
    return ({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [wanted]}}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
                "containers": [container], "automountServiceAccountToken": False, "resourceClaims": [{"name": "part", "resourceClaimName": name}]}})


def promised(cluster):
    """Per cent of the device, by claim."""
    return {claim["metadata"]["name"]: int(result["consumedCapacity"]["share"]) for claim in cluster.get("resourceclaims").get("items", [])
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])}


def is_bound(cluster, name):
    return cluster.get("pod", name).get("spec", {}).get("nodeName") == NODE


def unanswered_write(cluster):
    """Two claims of 60: the second waits; unless the answer to the first one's allocation was lost."""
    pods = Pods(cluster)
    documents = {name: claim_and_pod(name) for name in ("one", "two", "first", "second")}
    cluster.apply(*(claim for claim, _ in documents.values()))
    cluster.apply(documents["one"][1])
    wait_until(HANG, "one is bound", lambda: is_bound(cluster, "one"))
    cluster.apply(documents["two"][1])
    pods.wait_for_event("two: FailedScheduling", "cannot allocate all claims")
    if promised(cluster) != {"one": SHARE}:
        raise Wrong(f"{promised(cluster)}")
    # No kubelet says that they have ended.
    cluster.kubectl("delete", "pod", "one", "two", "--force", "--grace-period=0")
    cluster.kubectl("delete", "resourceclaim", "one", "two")
    cluster.apply(documents["first"][1])
    wait_until(HANG, "the lost write was made", lambda: "first" in promised(cluster))
    cluster.apply(documents["second"][1])
    wait_until(HANG, "second is bound", lambda: is_bound(cluster, "second"))
    cluster.release.touch()
    wait_until(HANG, "first is bound, too", lambda: is_bound(cluster, "first"))
    if promised(cluster) != {"first": SHARE, "second": SHARE}:
        raise Wrong(f"the scheduler has mended it: tighten volume_nodes.Volume.check_capacity. {promised(cluster)}")
    in_doubt = cluster.claims_in_doubt()
    if in_doubt != {"first"}:
        raise Wrong(f"{in_doubt}")


def scheduler():
    """The stock scheduler promises 120 per cent of one device, and its log says of which claim it had no answer."""
    with tempfile.TemporaryDirectory(prefix="avk-") as folder, contextlib.closing(Bare(folder)) as made:
        made.up()
        unanswered_write(made)
