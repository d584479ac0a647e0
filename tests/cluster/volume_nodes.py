"""Many nodes without kubelets: daemons and plugins as they are, and a double for all kubelets."""

import json
import random
import time

from cluster import CACHE, Cluster
from harness.process import AVIARY, HANG, ROOT, Wrong, run, wait_until
from pods import DRIVER

FIRST_PORT = 7800
# Of a plugin's metrics, above its daemon's port.
METRICS = 1000
# Every so many nodes one has no accelerator.
BARE = 4
# Claims at a time, for each node.
PARALLEL = 6
# Seconds between two kills, at random.
PAUSES = (0.5, 4.0)
WHOLE = 100


def stand_in(cluster, name):
    """A node of which no kubelet says that it lives."""
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    room = {"pods": "1000", "cpu": "1000", "memory": "1Ti"}
    ready = {"status": {"allocatable": room, "capacity": room, "conditions": [
        {"type": "Ready", "status": "True", "reason": "Double", "message": "", "lastHeartbeatTime": None, "lastTransitionTime": None}]}}
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(ready))
    cluster.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-", check=False)


class Volume(Cluster):
    """A control plane of the cluster's own; nodes are folders of the same machine."""

    def __init__(self, folder, count):
        super().__init__(folder)
        self.names = [f"v{number:02}" for number in range(count)]
        self.nodes = {}
        self.machine = self.control
        self.killed = {"plugin": 0, "aviary": 0, "apiserver": 0}
        # Per cent of a device that grants had together, and claims; and how often claims were promised more than all.
        self.most, self.most_promised, self.promised_twice = 0, 0, 0

    def up(self):
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        self.authority.make()
        self.vendor = self.folder / "programs"
        run(["sh", ROOT / "apis/testapi/build", self.vendor])
        self.control.start()
        self.make_bridge()
        self.start_control()
        self.kubectl("apply", "-k", ROOT / "kubernetes/deploy")
        self.kubectl("delete", "daemonset", "-n", "aviary", "--all")
        for name in self.names:
            self.add_node(name)
        for name in self.names:
            wait_until(HANG, f"{name} is published", lambda name=name: self.devices(name))

    @staticmethod
    def manager_options():
        """No kubelet says that its node lives: nobody must ask."""
        return ("--controllers=resourceclaim-controller,serviceaccount-controller,serviceaccount-token-controller",)

    def place(self, name):
        return self.folder / "nodes" / name

    def add_node(self, name):
        place = self.place(name)
        for folder in ("plugins", "registry", "cdi", "run", "grants", "guest/testapi"):
            (place / folder).mkdir(parents=True)
        (place / "guest/testapi/api.json").write_text('{"library": "libtestapi.so.1"}')
        (place / "node.toml").write_text("spares = 0\n")
        run([AVIARY, "tls", "init", place / "tls", "--name", "127.0.0.1"])
        stand_in(self, name)
        token = self.kubectl("create", "token", "aviary-kubelet-plugin", "-n", "aviary", "--duration=24h", "--bound-object-kind", "Node",
                             "--bound-object-name", name).strip()
        config = json.loads((self.folder / "admin.kubeconfig").read_text())
        config["users"] = [{"name": "u", "user": {"token": token}}]
        (place / "kubeconfig").write_text(json.dumps(config))
        self.start_part("aviary", name)
        self.start_part("plugin", name)

    def start_part(self, part, name):
        place, port = self.place(name), FIRST_PORT + self.names.index(name)
        if part == "aviary":
            has = self.names.index(name) % BARE != BARE - 1
            self.machine.spawn(
                f"aviary-{name}", AVIARY, "serve", "--config", place / "node.toml", "--listen", f"unix:{place}/run/node.sock", "--listen",
                f"127.0.0.1:{port}", "--tls-dir", place / "tls/node", "--grants", place / "grants", "--no-zygote",
                environment={"LD_LIBRARY_PATH": str(self.vendor) if has else "/nonexistent"},
            )
            wait_until(HANG, f"the daemon of {name} answers", lambda: (place / "run/node.admin").exists() and self.grants_of(name) is not None)
            return
        self.machine.spawn(
            f"plugin-{name}", CACHE / "aviary-kubelet-plugin", "--kubeconfig", place / "kubeconfig", "--node", name,
            "--socket", place / "run/node.sock", "--sockets", place / "run/grants", "--libraries", place / "guest",
            "--plugins", place / "plugins", "--registry", place / "registry", "--cdi", place / "cdi",
            "--address", f"127.0.0.1:{port}", "--certificate", place / "tls/node/node.pem",
            "--metrics", f"127.0.0.1:{port + METRICS}",
        )

    def grants_of(self, name):
        """None: it does not answer."""
        said = self.machine.call(AVIARY, "grant", "list", "--json", "--server", f"unix:{self.place(name)}/run/node.sock", check=False)
        return json.loads(said) if said.startswith("[") else None

    # --- what is done to it ---

    def load(self, claims, seed, *options):
        """The double with its load, which ends when all claims are gone."""
        return self.machine.spawn(
            "double", CACHE / "kubelet-double", "--kubeconfig", self.folder / "admin.kubeconfig", "--nodes", ",".join(self.names),
            "--folder", self.folder / "nodes", "--claims", str(claims), "--seed", str(seed), "--parallel", str(PARALLEL * len(self.names)), *options,
        )

    def harm(self, seed, going_on):
        """Kills plugins, daemons and the API server at random, and looks whether too much was given, until the load has ended."""
        dice = random.Random(seed)
        while going_on():
            time.sleep(dice.uniform(*PAUSES))
            self.check_capacity()
            part = dice.choices(("plugin", "aviary", "apiserver"), (10, 5, 1))[0]
            self.killed[part] += 1
            if part == "apiserver":
                self.control.kill("apiserver")
                self.start_api_server()
            else:
                name = dice.choice(self.names)
                self.machine.kill(f"{part}-{name}")
                self.start_part(part, name)

    def check_capacity(self):
        """Of no device more than all: neither granted, nor promised.

        The scheduler itself promises a part twice after a write to which it had no answer (scheduler_case.py shows it without us). So
        promises count without claims of which its log says that; each device that is promised beyond must have one of them.
        """
        promised, certain, given = {}, {}, {}
        claims = self.get("resourceclaims").get("items", [])
        # After the claims: what is promised because of a write in doubt comes after the log's line.
        doubtful = self.claims_in_doubt()
        for claim in claims:
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                device, share = (result["pool"], result["device"]), int(result["consumedCapacity"]["share"])
                add(promised, device, share)
                add(certain, device, 0 if claim["metadata"]["name"] in doubtful else share)
        for name in self.names:
            for grant in self.grants_of(name) or []:
                for device in grant["only_devices"] or []:
                    add(given, (name, device), grant["share"] or 0)
        over = {device: share for sums in (given, certain) for device, share in sums.items() if share > WHOLE}
        if over:
            raise Wrong(f"given twice: {over}; promised {promised}; in doubt {sorted(doubtful)}; killed {self.killed}")
        self.promised_twice += any(share > WHOLE for share in promised.values())
        self.most = max([self.most, *given.values()])
        self.most_promised = max([self.most_promised, *promised.values()])

    # --- what is left of it ---

    def left(self):
        found = []
        for name in self.names:
            place = self.place(name)
            grants = self.grants_of(name)
            found += [f"{name}: no answer"] if grants is None else [f"{name}: grant {grant['name']}" for grant in grants]
            for folder in (place / "cdi", place / "run/grants", place / "plugins" / DRIVER / "claims"):
                found += [str(path) for path in folder.iterdir()] if folder.is_dir() else []
            found += [str(path) for path in (place / "grants").iterdir() if path.name not in ("lock", "keys")]
            report = json.loads(self.machine.call(AVIARY, "ps", "--json", "--server", f"unix:{place}/run/node.sock"))[0]
            found += [f"{name}: session {one['session']}" for one in report["sessions"]]
            for device in self.devices(name):
                if device["name"] != "here" and device["capacity"]["share"]["value"] != str(WHOLE):
                    found.append(f"{name}: {device['name']} has {device['capacity']}")
        return found

    def has_nothing_left(self):
        deadline = time.monotonic() + HANG
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(1)
        if left:
            raise Wrong(f"{len(left)} things are left: {left[:20]}")


def add(sums, key, amount):
    sums[key] = sums.get(key, 0) + amount
