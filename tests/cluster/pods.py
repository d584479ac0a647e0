"""What tests put into the cluster, and look at."""

from harness.process import HANG, Wrong, wait_until

DRIVER = "accel.aviary.dev"
# A claim of the synthetic device, of which time is shared.
ACCELERATOR = {"device_class": "accel.aviary.dev", "device": "testapi accelerator"}
QUIET = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}


def claim(name, *, memory=None, share, device_class="opencl.aviary.dev", parameters=None, device=None, namespace="default"):
    """A claim of a part of one device; `device`: its name as the vendor's library tells it."""
    requests = {"share": str(share), **({"memory": memory} if memory else {})}
    wanted = {"deviceClassName": device_class, "capacity": {"requests": requests}}
    if device:
        expression = f'device.attributes["{DRIVER}"].productName == "{device}"'
        wanted["selectors"] = [{"cel": {"expression": expression}}]
    devices = {"requests": [{"name": "part", "exactly": wanted}]}
    if parameters:
        whole = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "AcceleratorConfig", **parameters}
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": whole}}]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": devices}}


def claim_template(name, **options):
    """The same as a template."""
    made = claim(name, **options)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def pod(name, *command, claim_name=None, node=None, namespace="default", more=None):
    container = {"name": "program", "image": "localhost/client:1", "imagePullPolicy": "Never", "command": list(command),
                 "resources": {"claims": [{"name": "part"}]} if claim_name else {}}
    spec = {"restartPolicy": "Never", "containers": [container], **QUIET, **(more or {})}
    if claim_name:
        spec["resourceClaims"] = [{"name": "part", "resourceClaimName": claim_name}]
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


class Pods:
    """Pods of a cluster."""

    def __init__(self, cluster):
        self.cluster = cluster

    def phase(self, name, namespace="default"):
        return self.cluster.get("pod", name, "-n", namespace).get("status", {}).get("phase", "")

    def wait(self, name, *phases, namespace="default"):
        try:
            wait_until(HANG, f"pod {name} is {' or '.join(phases)}", lambda: self.phase(name, namespace) in phases)
        except Exception as error:
            raise Wrong(f"{error}; {self.events(namespace)}") from error

    def log(self, name, namespace="default"):
        return self.cluster.kubectl("logs", name, "-n", namespace)

    def wait_for_log(self, name, text):
        wait_until(HANG, f"{name} says {text}", lambda: text in self.cluster.kubectl("logs", name, check=False))

    def run(self, name, *command, **options):
        self.cluster.apply(pod(name, *command, **options))

    def inside(self, name, *command, check=False):
        return self.cluster.kubectl("exec", name, "--", *command, check=check)

    def events(self, namespace="default"):
        found = self.cluster.get("events", "-n", namespace).get("items", [])
        return [f"{one['involvedObject']['name']}: {one['reason']}: {one['message']}" for one in found if one["type"] == "Warning"]

    def wait_for_event(self, *words, namespace="default"):
        def told():
            return [one for one in self.events(namespace) if all(word in one for word in words)]
        try:
            wait_until(HANG, f"an event says {words}", told)
        except Exception as error:
            raise Wrong(f"{error}; {self.events(namespace)}") from error

    def tenant(self, claim_name, namespace="default"):
        return "k8s-" + self.cluster.get("resourceclaim", claim_name, "-n", namespace)["metadata"]["uid"]

    def remove(self, *names, namespace="default"):
        """Pods, then claims, of these names."""
        for kind in ("pod", "resourceclaim"):
            self.cluster.kubectl("delete", kind, *names, "-n", namespace, "--ignore-not-found", "--now")

    def clear(self):
        """After a case that has failed."""
        self.cluster.kubectl("delete", "pod,resourceclaim", "--all", "--now", check=False)

    def nothing_left(self):
        """No grant, CDI file, folder of a socket or checkpoint of a claim on any node."""
        wait_until(HANG, "nothing of any claim is left", lambda: not self.left())

    def left(self):
        found = []
        for name, node in self.cluster.nodes.items():
            found += [f"{name}: grant {grant}" for grant in self.cluster.grants(name) if grant.startswith("k8s-")]
            for place in ("run/cdi", "run/aviary/grants", f"lib/kubelet/plugins/{DRIVER}/claims"):
                if (node.folder / place).is_dir():
                    found += [str(path) for path in (node.folder / place).iterdir()]
        return found

    def sessions(self, node, tenant):
        report = self.cluster.report(node)
        return [one for one in report["sessions"] if one["tenant"] == tenant]

    def work(self, node, tenant):
        """What its sessions have done; another value later if they go on."""
        return [(one["session"], one["counters"]) for one in self.sessions(node, tenant)]

    def device_time(self, node):
        """Nanoseconds that each tenant had of scheduled devices."""
        report = self.cluster.report(node)
        return {one["tenant"]: one["used_ns"] for device in report["devices"] for one in device["tenants"]}
