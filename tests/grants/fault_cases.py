"""Nodes that are killed, reloaded, restarted and replaced; files that others have written; many grants."""

import json
import os
import subprocess
import time

from granting import GrantingNode, ended, granting, guest, holding, wait_for_sessions
from harness.process import AVIARY, HANG, Wrong, wait_until

# Where the node is killed, and whether the grant is there afterwards.
GRANTING = {"SocketMade": False, "FileWritten": False, "FileNamed": True, "InForce": True}
REVOKING = {"FileRemoved": False, "Ended": False}
MANY = 1000


def killed_at(tools, step, first, there):
    """Killed in the middle, a command has been carried out or not, and can be repeated."""
    node = GrantingNode(tools)
    try:
        if first:
            node.grant("pod", "--limit", "device_memory=2M")
        left = node.kill()
        wait_until(HANG, "its processes are gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in left))
        node.environment["AVIARY_TEST_GRANT_STEP"] = step
        node.start()
        words = ("revoke", "pod") if first else ("grant", "pod", "--socket", str(node.sockets / "pod"), "--limit", "device_memory=2M")
        done = subprocess.run([AVIARY, *words, "--server", node.address], capture_output=True, text=True, timeout=HANG, check=False)
        if done.returncode == 0 or node.process.wait(timeout=HANG) != -9:
            raise Wrong(f"{step}: the node was not killed: {done.stdout}{done.stderr}")
        del node.environment["AVIARY_TEST_GRANT_STEP"]
        node.start()
        if ("pod" in node.grants()) != there:
            raise Wrong(f"{step}: {node.grants()}")
        if not first:
            node.grant("pod", "--limit", "device_memory=2M")
            status, said = ended(guest(node, node.socket_of("pod"), tools.program("quota"), 2 << 20))
            if status:
                raise Wrong(f"{step}: {said}")
        answer = node.revoke("pod")
        if not answer["done"] or node.grants() or (node.state / "pod.json").exists():
            raise Wrong(f"{step}: {answer} {node.grants()}")
        # What was made before and is not in force is made again, and taken away with it.
        node.grant("pod")
        node.revoke("pod")
        if (node.sockets / "pod").exists():
            raise Wrong(f"{step}: {list(node.sockets.rglob('*'))}")
        node.stop()
    finally:
        node.discard()


def killed(tools):
    for step, there in GRANTING.items():
        killed_at(tools, step, False, there)
    for step, there in REVOKING.items():
        killed_at(tools, step, True, there)


def outlives_the_node(tools):
    """Killed, restarted and reloaded, the node has its grants; containers have the folder mounted all the time."""
    config = tools.folder("config") / "node.toml"
    config.write_text("[tenants.lab]\nusers = [9]\n", encoding="utf-8")
    with granting(tools, "--config", config) as node:
        node.grant("pod", "--limit", "device_memory=2M", "--share", "7")
        inode = (node.sockets / "pod").stat().st_ino
        before = node.grants()
        config.write_text("[tenants.pod]\nusers = [0]\n", encoding="utf-8")
        if "tenant pod is a grant: its entry in the configuration has no effect" not in node.command("reload"):
            raise Wrong("a grant's name in the configuration")
        with holding(node, node.socket), holding(node, node.socket_of("pod")):
            wait_for_sessions(node, "pod", 1)
            wait_for_sessions(node, "uid-0", 1)
        for end in ("kill", "terminate"):
            getattr(node.process, end)()
            node.process.wait(timeout=HANG)
            node.start()
            if node.grants() != before or (node.sockets / "pod").stat().st_ino != inode:
                raise Wrong(f"{end}: {node.grants()}")
            status, said = ended(guest(node, node.socket_of("pod"), tools.program("quota"), 2 << 20))
            if status:
                raise Wrong(f"{end}: {said}")
        config.write_text("", encoding="utf-8")
        node.command("reload")
        if json.loads(node.command("tenant", "show", "pod", "--json"))["weight"] != 7:
            raise Wrong("a reload forgot the grant")


def upgraded(tools):
    """A new program takes over grants, their sockets and sessions."""
    with granting(tools) as node:
        node.grant("pod", "--limit", "device_memory=2M")
        with holding(node, node.socket_of("pod")) as (program,):
            wait_for_sessions(node, "pod", 1)
            node.command("upgrade", "--wait", str(int(HANG)))
            if program.poll() is not None or len(node.sessions("pod")) != 1:
                raise Wrong("the session did not survive")
            (session,) = node.sessions("pod")
            if "outdated" in session:
                raise Wrong(f"{session}")
            # A second one would be more than the tenant has: the account goes on.
            status, said = ended(guest(node, node.socket_of("pod"), tools.program("quota"), 2 << 20))
            if status == 0:
                raise Wrong(f"the account began anew: {said}")
            if node.revoke("pod")["sessions"] != 1 or program.wait(timeout=HANG) != 3:
                raise Wrong("the session outlives its grant")


def forged(tools):
    """A node starts whatever lies in its folder, names what makes no grant, and leaves it."""
    with granting(tools) as node:
        node.grant("good")
        node.grant("stolen")
        good = (node.state / "good.json").read_text(encoding="utf-8")
        node.process.terminate()
        node.process.wait(timeout=HANG)
        (node.state / "evil.json").write_text(good.replace('"good"', '"evil"', 1), encoding="utf-8")
        os.chown(node.state / "evil.json", 12_345, 0)
        (node.state / "other.json").write_text(good, encoding="utf-8")
        (node.state / "broken.json").write_text(good[:40], encoding="utf-8")
        os.chown(node.sockets / "stolen", 12_345, 0)
        node.start()
        if list(node.grants()) != ["good"]:
            raise Wrong(f"{list(node.grants())}")
        log = node.log_text()
        for why in ("evil.json makes no grant: it belongs to user 12345", "other.json makes no grant", "broken.json makes no grant",
                    "grant stolen is not in force: the folder of the socket"):
            if why not in log:
                raise Wrong(f"{why}: {log[-2000:]}")
        # What could not be in force can be taken back all the same, once.
        if [node.revoke("stolen")[field] for field in ("known", "done")] != [True, True] or (node.state / "stolen.json").exists():
            raise Wrong("stolen is still there")
        if node.revoke("stolen")["known"] or node.revoke("broken")["known"] or not (node.sockets / "stolen").exists():
            raise Wrong("what is not a grant of this node was taken away")
        os.chown(node.state, 12_345, 0)
        node.process.terminate()
        node.process.wait(timeout=HANG)
        node.start()
        if node.grants() or "belongs to user 12345" not in node.grant("new", status=1):
            raise Wrong("a folder of another user is used")
        os.chown(node.state, 0, 0)


def many(tools):
    """A thousand grants: each has its socket and file, at once and after a restart."""
    with granting(tools) as node:
        began = time.monotonic()
        for i in range(MANY):
            request = {"grant": {"name": f"pod-{i}", "entrance": {"socket": str(node.sockets / f"pod-{i}")},
                                 "limits": {"device_memory": 2 << 20}, "share": None}, "lifetime": None, "overcommit": False}
            answer = node.ask({"grant": request})
            if "error" in answer:
                raise Wrong(answer["error"])
        made = time.monotonic() - began
        node.process.kill()
        node.process.wait()
        began = time.monotonic()
        node.start()
        started = time.monotonic() - began
        if len(node.grants()) != MANY:
            raise Wrong(f"{len(node.grants())} grants")
        for i in (0, MANY // 2, MANY - 1):
            status, said = ended(guest(node, node.socket_of(f"pod-{i}"), tools.program("quota"), 2 << 20))
            if status:
                raise Wrong(f"pod-{i}: {said}")
        began = time.monotonic()
        for i in range(MANY):
            wait_until(HANG, "nothing is left of it", lambda name=f"pod-{i}": node.ask({"revoke": name})["done"])
        revoked = time.monotonic() - began
        if node.grants() or list(node.sockets.iterdir()) or [path.name for path in node.state.iterdir()] != ["lock"]:
            raise Wrong("something is left")
        print(f"figure: {MANY} grants made in {made:.1f} s, there after a restart of {started:.2f} s, revoked in {revoked:.1f} s")


CASES = {
    "killed at any step": killed,
    "outlives the node": outlives_the_node,
    "upgraded": upgraded,
    "forged files": forged,
    "a thousand": many,
}
