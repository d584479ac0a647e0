#!/usr/bin/env python3
"""How fast claims are: `./x bench cluster` runs this and reads the JSON object that it prints.

Four nodes of volume_nodes.py, nobody killed; the last one has no accelerator. A claim is made with a pod, scheduled, prepared (grant,
socket, CDI file), unprepared and deleted, by the real scheduler, controller, daemons and plugins and a double for the kubelets.

  tests/cluster/rates CLAIMS    so many of each kind: of the pod's own node's devices (local), of another node's (remote)
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
sys.dont_write_bytecode = True

from cluster import BUILD  # noqa: E402
from harness.process import Wrong  # noqa: E402
from volume_nodes import FIRST_PORT, METRICS, Volume  # noqa: E402

NODES, BARE = 4, "v03"
# One at a time, to see what a prepare takes by itself.
ALONE = 40
# So many at a time keep all parts busy on two cores.
PARALLEL = 64
PLUGIN = "system:serviceaccount:aviary:aviary-kubelet-plugin"
WRITES = ["create", "update", "patch", "delete", "deletecollection"]
# Requests a second that scheduler and controller manager may make. Their usual 50 and 20 allow some 600 claims a minute, whatever
# else takes time.
UNBOUND = ("--kube-api-qps", "1000", "--kube-api-burst", "2000")
# Seconds in which the API server has written the last line of its log.
SETTLED = 2
METRIC = re.compile(r'aviary_plugin_seconds_(sum|count)\{operation="(\w+)"\} (\S+)')
SAID = {"prepared": re.compile(r"^(\d+) prepared, (\d+) attempts failed, ([\d.]+) ms a prepare", re.MULTILINE),
        "took": re.compile(r"made and deleted in ([\d.]+) s")}


class Rated(Volume):
    """Whose API server logs what plugins write."""

    def up(self):
        rules = [{"level": "Metadata", "users": [PLUGIN], "verbs": WRITES}, {"level": "None"}]
        self.policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}))
        super().up()

    @property
    def policy(self):
        return self.folder / "audit.json"

    @property
    def written(self):
        return self.folder / "audit.log"

    def api_server_options(self):
        return ("--audit-policy-file", self.policy, "--audit-log-path", self.written)

    def manager_options(self):
        return (*super().manager_options(), *UNBOUND)

    @staticmethod
    def scheduler_options():
        return UNBOUND

    def writes(self):
        """Requests of all plugins that write, by verb and object."""
        time.sleep(SETTLED)
        lines = self.written.read_text(encoding="utf-8").splitlines() if self.written.exists() else []
        found = Counter()
        for event in map(json.loads, lines):
            of = event["objectRef"]
            found[f"{event['verb']} {of['resource']}{'/' + of['subresource'] if 'subresource' in of else ''}"] += 1
        return found

    def seconds(self):
        """What the plugins' metrics say of each operation: how many, and how long together."""
        total = Counter()
        for number in range(NODES):
            address = f"http://127.0.0.1:{FIRST_PORT + number + METRICS}/metrics"
            text = self.machine.call("python3", "-c", f"import urllib.request as u; print(u.urlopen({address!r}).read().decode())")
            for kind, operation, value in METRIC.findall(text):
                total[operation, kind] += float(value)
        return total

    def round(self, claims, parallel, *options):
        """Makes claims and waits until they are gone; what is known of them."""
        log = self.folder / "log/control-double"
        log.unlink(missing_ok=True)
        before, counted = self.writes(), self.seconds()
        self.load(claims, 1, "--parallel", parallel, "--share", 1, "--patience", 0, "--every", *options).wait()
        said = log.read_text(encoding="utf-8")
        prepared, took = SAID["prepared"].search(said), SAID["took"].search(said)
        if not prepared or not took or int(prepared[1]) != claims:
            raise Wrong(f"{claims} claims were to be prepared: {said[-2000:]}")
        self.has_nothing_left()
        writes, seconds = self.writes() - before, self.seconds() - counted
        print(f"{claims} claims, {parallel} at a time, {' '.join(options)}: {took[1]} s, {prepared[2]} attempts failed, written: {dict(writes)}",
              file=sys.stderr)
        return {"a_minute": claims * 60 / float(took[1]), "rpc_ms": float(prepared[3]), "writes": writes.total() / claims,
                **{f"{operation}_ms": 1000 * seconds[operation, "sum"] / max(seconds[operation, "count"], 1)
                   for operation in ("prepare", "unprepare", "answer", "grant")}}


def measured(claims):
    """Figures by the names that bench/claims.py explains."""
    made = Rated(tempfile.mkdtemp(prefix="avk-"), NODES)
    found = {}
    try:
        made.up()
        for kind, where in (("local", "local"), ("remote", BARE)):
            alone = made.round(ALONE, 1, "--where", where)
            busy = made.round(claims, PARALLEL, "--where", where)
            found |= {f"{kind}.claims_a_minute": busy["a_minute"], f"{kind}.writes": busy["writes"],
                      f"{kind}.prepare_rpc_ms": alone["rpc_ms"], f"{kind}.busy_prepare_rpc_ms": busy["rpc_ms"]}
            node = lambda one, kind=kind: one["prepare_ms"] if kind == "local" else one["grant_ms"]  # noqa: E731
            found |= {f"{kind}.node_ms": node(alone), f"{kind}.busy_node_ms": node(busy)}
            if kind == "remote":
                found |= {"remote.answer_ms": alone["answer_ms"], "remote.busy_answer_ms": busy["answer_ms"]}
    finally:
        made.down()
    return found


if __name__ == "__main__":
    subprocess.run([BUILD, "--plugin"], check=True)
    print(json.dumps(measured(int(sys.argv[1]))))
