"""Guests of other machines that show a key which a grant names."""

import json
import socket
import subprocess

from granting import GrantingNode, ended
from harness.process import AVIARY, HANG, Wrong, run, wait_until


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def remotely(node, port, folder, *words):
    """A program on another machine, as far as it knows; `folder`: who it is. It knows the node by its certificate."""
    pin = run(["openssl", "x509", "-in", node.tls / "node/node.pem", "-noout", "-fingerprint", "-sha256"]).split("=")[1].strip()
    command = [AVIARY, "run", "--api", "testapi", "--server", f"127.0.0.1:{port}", "--tls-dir", folder, "--tls-pin", pin, "--", *words]
    return subprocess.Popen(
        [str(word) for word in command], env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(node.tools.vendor)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def keys(tools):
    """The key's guest is the grant's tenant, with a certificate that nobody has signed; no other certificate is; revoked, it ends."""
    port, tls = free_port(), tools.folder("tls")
    run([AVIARY, "tls", "init", tls, "--name", "127.0.0.1", "--tenant", "far"])
    own = run([AVIARY, "tls", "key", tls / "own"]).strip()
    run([AVIARY, "tls", "key", tls / "other"])
    if oct((tls / "own/tenant.key").stat().st_mode & 0o777) != "0o600":
        raise Wrong("others can read the key")
    node = GrantingNode(tools, "--listen", f"127.0.0.1:{port}", "--tls-dir", tls / "node")
    node.tls = tls
    try:
        node.command("grant", "far", "--key", own, "--limit", "device_memory=2M")
        status, said = ended(remotely(node, port, tls / "own", tools.program("quota"), 2 << 20))
        if status:
            raise Wrong(f"{said}")
        # Not named by any grant; and a certificate of the CA with the grant's name.
        for folder, why in ((tls / "other", "refuses our c"), (tls / "tenant-far", "is a grant, whose guests come by its own socket")):
            status, said = ended(remotely(node, port, folder, tools.program("hold"), "1"))
            if status == 0 or why not in said:
                raise Wrong(f"{folder}: {status} {said}")
        holder = remotely(node, port, tls / "own", tools.program("hold"), "600")
        try:
            if not holder.stdout.readline().startswith("holding"):
                raise Wrong(f"{holder.stderr.read()}")
            wait_until(HANG, "its session is there", lambda: len(node.sessions("far")) == 1)
            node.process.kill()
            node.process.wait()
            node.start()
            if holder.wait(timeout=HANG) != 3:
                raise Wrong("its device is not lost with the node")
        finally:
            holder.kill()
            holder.communicate()
        holder = remotely(node, port, tls / "own", tools.program("hold"), "600")
        try:
            if not holder.stdout.readline().startswith("holding"):
                raise Wrong(f"after a restart: {holder.stderr.read()}")
            answer = node.revoke("far")
            if answer["sessions"] != 1 or holder.wait(timeout=HANG) != 3:
                raise Wrong(f"{json.dumps(answer)}")
        finally:
            holder.kill()
            holder.communicate()
        status, said = ended(remotely(node, port, tls / "own", tools.program("hold"), "1"))
        if status == 0 or "refuses our c" not in said:
            raise Wrong(f"revoked: {status} {said}")
        node.stop()
    finally:
        node.discard()


CASES = {"keys": keys}
