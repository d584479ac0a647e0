"""Kubernetes claims: how many a minute, what the node adds to each, and what the plugin writes to the API server."""

import json
import subprocess
import sys

from harness.process import ROOT, Failure, Skipped

CLAIMS, QUICK = 1000, 200

FIGURES = {
    "cluster.local.claims_a_minute": "claims of the pod's own node's device: made, scheduled, prepared, unprepared, gone, 64 at a time (target >= 1000)",
    "cluster.local.writes": "... requests of plugins that write to the API server, for each claim (target 0)",
    "cluster.local.node_ms": "... the node's part of a prepare: checkpoints, grant, CDI file; one claim at a time, mean (target <= 10)",
    "cluster.local.busy_node_ms": "... 64 at a time, waiting for the processors",
    "cluster.local.prepare_rpc_ms": "... the kubelet's whole call, with its reading of the claim; one at a time",
    "cluster.local.busy_prepare_rpc_ms": "... 64 at a time",
    "cluster.remote.claims_a_minute": "claims of another node's device: the same",
    "cluster.remote.writes": "... the pod's node writes its key, the device's node its answer (target <= 2)",
    "cluster.remote.node_ms": "... the pod's node's daemon: key, socket, way to the other node; one at a time, mean (target <= 10)",
    "cluster.remote.busy_node_ms": "... 64 at a time",
    "cluster.remote.answer_ms": "... the device's node: grant to the key; one at a time, mean (target <= 10)",
    "cluster.remote.busy_answer_ms": "... 64 at a time",
    "cluster.remote.prepare_rpc_ms": "... the kubelet's whole call, with both writes and what was waited for; one at a time",
    "cluster.remote.busy_prepare_rpc_ms": "... 64 at a time",
}


def claims(quick):
    lacks = subprocess.run([ROOT / "tests/cluster/build", "--check"], capture_output=True, text=True, check=False)
    if lacks.returncode:
        raise Skipped(f"needs {lacks.stdout.strip()}")
    # Of its own: its modules and those of benchmarks have the same names.
    command = [sys.executable, ROOT / "tests/cluster/rates.py", str(QUICK if quick else CLAIMS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Failure(f"tests/cluster/rates.py ended with status {done.returncode}")
    found = json.loads(done.stdout)
    return {name: found[name.removeprefix("cluster.")] for name in FIGURES}
