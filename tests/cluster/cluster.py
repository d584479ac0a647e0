"""A Kubernetes cluster on this machine: control plane and nodes in namespaces, real kubelets and containers, Aviary on each node."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import images
from harness.process import APIS, AVIARY, HANG, ROOT, Wrong, run, wait_until
from machine import Machine, remove

HERE = Path(__file__).resolve().parent
CACHE = ROOT / "target/cache/cluster"
BUILD = HERE / "build"
# The cluster's network: the control plane, this machine, and nodes from 10.250.0.11 on. The service address of the API server is one
# of the control plane's, so that pods reach it without a proxy.
PREFIX, CONTROL, HOST, SERVICE = "10.250.0", "10.250.0.1", "10.250.0.254", "10.96.0.1"
NODES = ("n1", "n2")
PORT = 7800


def missing():
    """What keeps a cluster from running here; empty: nothing."""
    done = subprocess.run([BUILD, "--check"], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode else ""


# What the scheduler logs of an allocation that it has written without an answer: it then takes back what it knew of it.
IN_DOUBT = re.compile(r"add allocation and reservation to claim [^/ ]+/([\w.-]+): Put ")


class Authority:
    """Certificates of the cluster's parts."""

    def __init__(self, folder):
        self.folder = folder

    def make(self):
        self.folder.mkdir()
        self.ssl("req", "-x509", *self.key("ca"), "-out", "ca.crt", "-days", "30", "-subj", "/CN=test-ca")
        self.ssl("genrsa", "-out", "sa.key", "2048")

    @staticmethod
    def key(name):
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")

    def ssl(self, *words):
        run(["sh", "-c", 'cd "$1"; shift; exec openssl "$@" 2>&1', "sh", self.folder, *words])

    def sign(self, name, common, group, *addresses):
        self.ssl("req", "-new", *self.key(name), "-out", f"{name}.csr", "-subj", f"/O={group}/CN={common}")
        names = f"subjectAltName={','.join(addresses)}\n" if addresses else ""
        (self.folder / f"{name}.ext").write_text(f"extendedKeyUsage=clientAuth,serverAuth\n{names}")
        self.ssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
                 "-out", f"{name}.crt", "-extfile", f"{name}.ext")


class Cluster:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.control = Machine(self.folder, "control")
        self.nodes = {name: Machine(self.folder, name) for name in NODES}
        self.authority = Authority(self.folder / "pki")
        self.program = run([BUILD, "--program"]).strip()

    # --- up and down ---

    def up(self):
        """From nothing to two nodes that are ready, with the plugin on them."""
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        self.authority.make()
        archives = images.make(self.folder / "images")
        self.connect()
        self.start_control()
        for number, name in enumerate(NODES, 1):
            self.start_node(name, number, archives)
        for name in NODES:
            wait_until(HANG, f"node {name} is ready", lambda name=name: self.is_ready(name))
        self.deploy()

    def connect(self):
        """A bridge in the control plane; a wire from it to each node and to this machine."""
        control = self.control
        control.start()
        self.make_bridge()
        for number, name in enumerate(NODES, 1):
            node = self.nodes[name]
            node.start()
            self.wire(name, node.init)
            node.call("sh", "-ec", f"ip addr add {PREFIX}.{10 + number}/24 dev eth0; ip link set eth0 up; ip route add default via {CONTROL}")
            control.call("ip", "route", "add", f"10.241.{number}.0/24", "via", f"{PREFIX}.{10 + number}")

    def make_bridge(self):
        addresses = f"ip addr add {CONTROL}/24 dev br0; ip addr add {SERVICE}/32 dev br0"
        self.control.call("sh", "-ec", f"ip link add br0 type bridge; {addresses}; ip link set br0 up")

    def wire_host(self):
        """This machine's end of the bridge, for people's kubectl. Of one cluster at a time: all have the same addresses."""
        self.wire("host", os.getpid())
        run(["sh", "-ec", f"ip addr add {HOST}/24 dev {self.host_end}; ip link set {self.host_end} up"])

    @staticmethod
    def manager_options():
        """Further options of the controller manager."""
        return ()

    @staticmethod
    def scheduler_options():
        """Further options of the scheduler."""
        return ()

    @staticmethod
    def api_server_options():
        """Further options of the API server."""
        return ()

    @property
    def host_end(self):
        return f"avk{self.control.init}"[:15]

    def wire(self, name, other):
        """From the bridge to the network of a process, whose number is that of this machine."""
        near, far = f"to-{name}", self.host_end if name == "host" else "eth0"
        inside = ("nsenter", "-t", self.control.init, "-n", "--", "ip", "link")
        run(list(map(str, (*inside, "add", near, "type", "veth", "peer", "name", far, "netns", other))))
        run(list(map(str, (*inside, "set", near, "master", "br0", "up"))))

    def down(self):
        for machine in (*self.nodes.values(), self.control):
            machine.stop()
        remove(self.folder)

    # --- the control plane ---

    def kubeconfig(self, name):
        pki = self.authority.folder
        (self.folder / f"{name}.kubeconfig").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": f"https://{CONTROL}:443", "certificate-authority": str(pki / "ca.crt")}}],
            "users": [{"name": "u", "user": {"client-certificate": str(pki / f"{name}.crt"), "client-key": str(pki / f"{name}.key")}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }))
        return self.folder / f"{name}.kubeconfig"

    def account(self, name, common, group, *addresses):
        self.authority.sign(name, common, group, *addresses)
        return self.kubeconfig(name)

    def start_control(self):
        pki, control = self.authority.folder, self.control
        self.authority.sign("server", "kube-apiserver", "kubernetes", f"IP:{CONTROL}", f"IP:{SERVICE}", "DNS:kubernetes.default.svc")
        self.account("admin", "admin", "system:masters")
        self.account("manager", "system:kube-controller-manager", "system:kube-controller-manager")
        self.account("scheduler", "system:kube-scheduler", "system:kube-scheduler")
        control.spawn("etcd", self.program, "etcd", "--data-dir", control.folder / "etcd", "--unsafe-no-fsync", "--log-level", "warn")
        self.start_api_server()
        keys = ("--cluster-signing-cert-file", pki / "ca.crt", "--cluster-signing-key-file", pki / "ca.key")
        control.spawn("manager", self.program, "controller-manager", "--kubeconfig", self.folder / "manager.kubeconfig",
                      "--service-account-private-key-file", pki / "sa.key", "--root-ca-file", pki / "ca.crt",
                      "--use-service-account-credentials", "--leader-elect=false", *keys, *self.manager_options())
        control.spawn("scheduler", self.program, "scheduler", "--kubeconfig", self.scheduler_config(), "--leader-elect=false",
                      *self.scheduler_options())

    def scheduler_config(self):
        """How the scheduler reaches the API server."""
        return self.folder / "scheduler.kubeconfig"

    def close(self):
        self.down()

    def start_api_server(self):
        pki = self.authority.folder
        self.control.spawn(
            "apiserver", self.program, "apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--bind-address", "0.0.0.0",
            "--secure-port", "443", "--advertise-address", CONTROL, "--endpoint-reconciler-type", "none", "--allow-privileged",
            "--tls-cert-file", pki / "server.crt", "--tls-private-key-file", pki / "server.key", "--client-ca-file", pki / "ca.crt",
            "--kubelet-client-certificate", pki / "admin.crt", "--kubelet-client-key", pki / "admin.key",
            "--kubelet-preferred-address-types", "InternalIP",
            "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", pki / "sa.key",
            "--service-account-signing-key-file", pki / "sa.key", "--service-cluster-ip-range", "10.96.0.0/16",
            "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", *self.api_server_options(),
        )
        # What other parts need of it: before, they have no rights. Its check of everything may fail for long under load.
        rights = "/readyz/poststarthook/rbac/bootstrap-roles"
        while self.kubectl("get", "--raw", rights, check=False) != "ok":
            used = self.control.cpu_seconds("apiserver")
            if used is None or used > HANG:
                raise Wrong(f"the API server is not ready after {used} CPU seconds (None: it has ended): {self.control.said('apiserver')}")
            time.sleep(0.1)

    # --- nodes ---

    def start_node(self, name, number, archives):
        node = self.nodes[name]
        address = f"{PREFIX}.{10 + number}"
        self.account(name, f"system:node:{name}", "system:nodes", f"IP:{address}", f"DNS:{name}")
        self.lay_guest(node)
        run([AVIARY, "tls", "init", node.folder / "tls", "--name", address])
        self.start_daemon(name)
        node.make_groups()
        self.write_settings(node, number, address)
        path = f"{CACHE}/root/usr/bin:{CACHE}/root/usr/sbin:{os.environ['PATH']}"
        node.spawn("containerd", CACHE / "root/usr/bin/containerd", "-c", node.folder / "containerd.toml", environment={"PATH": path})
        ctr = (CACHE / "root/usr/bin/ctr", "-n", "k8s.io")
        wait_until(HANG, "containerd answers", lambda: "Server" in node.call(*ctr, "version", check=False))
        for archive in archives:
            node.call(*ctr, "images", "import", archive)
        self.start_kubelet(name)

    def start_kubelet(self, name):
        node = self.nodes[name]
        number = NODES.index(name) + 1
        node.spawn("kubelet", self.program, "kubelet", "--config", node.folder / "kubelet.json", "--kubeconfig",
                   self.folder / f"{name}.kubeconfig", "--cert-dir", node.folder / "pki", "--hostname-override", name,
                   "--node-ip", f"{PREFIX}.{10 + number}")

    def lay_guest(self, node):
        """What the package aviary-guest has: for each API its description and the library for programs."""
        place = node.folder / "lib/aviary/guest"
        for api in ("cuda", "opencl", "testapi"):
            (place / api).mkdir(parents=True, exist_ok=True)
            library = json.loads((APIS / api / "api.json").read_text(encoding="utf-8"))["library"]
            for name in ("api.json", library):
                shutil.copy(APIS / api / name, place / api)

    def start_daemon(self, name, accelerated=None, environment=()):
        """`aviary serve`; n1 has accelerators, others have none, unless it is said."""
        node = self.nodes[name]
        address = f"{PREFIX}.{10 + NODES.index(name) + 1}"
        config = node.folder / "node.toml"
        program, variables, options = AVIARY, {}, ()
        if name == "n1" if accelerated is None else accelerated:
            vendor = self.folder / "images/programs"
            accelerator = self.folder / f"accelerator-{name}"
            accelerator.touch()
            accelerator.chmod(0o666)
            variables = {"LD_LIBRARY_PATH": f"{vendor}:{vendor}/cuda", "TESTAPI_ACCELERATOR": str(accelerator)}
            config.write_text(NODE_TOML.format(accelerator=accelerator))
        else:
            # A program that is in no tree finds only the API that it is told of, whose library this node does not have.
            program = node.folder / "bin/aviary"
            if not program.exists():
                program.parent.mkdir()
                shutil.copy(AVIARY, program)
                shutil.copytree(APIS / "testapi", node.folder / "apis/testapi", ignore=shutil.ignore_patterns("gen"))
            config.write_text("spares = 0\n")
            options = ("--api-dir", node.folder / "apis", "--no-zygote")
        process = node.spawn("aviary", program, "serve", "--config", config, "--listen", "unix:/run/aviary/node.sock", "--listen",
                             f"{address}:{PORT}", "--tls-dir", node.folder / "tls/node", *options,
                             environment={**variables, **dict(environment)})
        answers = lambda: node.call(AVIARY, "grant", "list", "--json", check=False)  # noqa: E731
        wait_until(HANG, f"the daemon of {name} answers", lambda: process.poll() is not None or answers())
        if process.poll() is not None:
            raise Wrong(f"the daemon of {name} ended: {(self.folder / f'log/{name}-aviary').read_text()[-1000:]}")

    def write_settings(self, node, number, address):
        network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{
            "type": "bridge", "bridge": "pods", "isDefaultGateway": True, "ipMasq": False,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": f"10.241.{number}.0/24"}]]}}]}
        (node.folder / "cni").mkdir(exist_ok=True)
        (node.folder / "cni/10.conflist").write_text(json.dumps(network))
        (node.folder / "containerd.toml").write_text(CONTAINERD.format(root=CACHE / "root", cni=node.folder / "cni"))
        pki = self.authority.folder
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "failCgroupV1": False,
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{node.group}", "enforceNodeAllocatable": ["none"],
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "address": address, "readOnlyPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}, "x509": {"clientCAFile": str(pki / "ca.crt")}},
            "authorization": {"mode": "AlwaysAllow"}, "tlsCertFile": str(pki / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{node.name}.key"), "resolvConf": "", "makeIPTablesUtilChains": False,
            "localStorageCapacityIsolation": False, "failSwapOn": False, "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100, "syncFrequency": "5s", "nodeStatusUpdateFrequency": "5s",
        }
        (node.folder / "kubelet.json").write_text(json.dumps(settings))

    def is_ready(self, name):
        found = self.get("node", name)
        conditions = found.get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    # --- what runs in it ---

    def deploy(self):
        """The manifests that everybody uses, with this cluster's image and folders."""
        overlay = self.folder / "overlay"
        shutil.copytree(HERE / "overlay", overlay / "tests/cluster/overlay", dirs_exist_ok=True)
        shutil.copytree(ROOT / "kubernetes/deploy", overlay / "kubernetes/deploy", dirs_exist_ok=True)
        for name in NODES:
            tls = self.nodes[name].folder / "lib/aviary/tls"
            tls.mkdir(exist_ok=True)
            shutil.copy(self.nodes[name].folder / "tls/node/node.pem", tls)
        self.kubectl("apply", "-k", overlay / "tests/cluster/overlay")
        for name in NODES:
            wait_until(HANG, f"{name} is published", lambda name=name: self.devices(name))

    def devices(self, pool):
        return [device for slice_ in self.get("resourceslices").get("items", []) if slice_["spec"]["pool"]["name"] == pool
                for device in slice_["spec"].get("devices", [])]

    def taints(self, pool):
        """Of its devices, as text: KEY=VALUE:EFFECT in a line each; empty: none."""
        return "\n".join(f"{one['key']}={one.get('value', '')}:{one['effect']}" for device in self.devices(pool) for one in device.get("taints", []))

    def claims_in_doubt(self):
        """Names of claims whose allocation the scheduler has written without an answer, as its log says."""
        log = (self.folder / "log/control-scheduler").read_text(encoding="utf-8", errors="replace")
        return set(IN_DOUBT.findall(log))

    def kubectl(self, *words, check=True, given=None, account="admin"):
        """The output of kubectl; of one that fails, what it says, unless that is wrong."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.control.init), "-n", "--", CACHE / "kubectl", "--kubeconfig", self.folder / f"{account}.kubeconfig", *map(str, words)],
            capture_output=True, text=True, check=False, timeout=HANG, input=given,
        )
        if check and done.returncode != 0:
            raise Wrong(f"kubectl {' '.join(map(str, words))[:200]}: {done.stderr[-2000:]}")
        return done.stdout if done.returncode == 0 else done.stderr

    def get(self, *words):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(self.kubectl("get", *words, "-o", "json", check=False))
        return {}

    def apply(self, *documents, **options):
        return self.kubectl("apply", "-f", "-", given="\n---\n".join(map(json.dumps, documents)), **options)

    def aviary(self, name, *words, **options):
        """A command about a node's daemon."""
        return self.nodes[name].call(AVIARY, *words, **options)

    def report(self, name):
        """What its daemon says of sessions and devices."""
        return json.loads(self.aviary(name, "ps", "--json", "--server", "unix:/run/aviary/node.sock"))[0]

    def grants(self, name):
        return {grant["name"]: grant for grant in json.loads(self.aviary(name, "grant", "list", "--json"))}


# The synthetic accelerator is scheduled; its users may stay awake for it, as it is not this machine's processors.
NODE_TOML = """pass_environment = ["TESTAPI_*"]
[sandbox]
devices = ["{accelerator}"]
[devices."testapi accelerator"]
scheduler = "fair"
awake = "300us"
"""

CONTAINERD = """version = 2
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  enable_cdi = true
  cdi_spec_dirs = ["/run/cdi"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{root}/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{root}/usr/sbin/runc"
        SystemdCgroup = false
"""


@contextlib.contextmanager
def cluster():
    """One for a test, which is gone afterwards."""
    made = Cluster(tempfile.mkdtemp(prefix="avk-"))
    try:
        made.up()
        yield made
    finally:
        made.down()
