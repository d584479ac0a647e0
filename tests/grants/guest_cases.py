"""Guests of grants with sockets: who they are, what they may have, and how they lose it."""

import json
import os
import subprocess

from granting import ended, granting, guest, holding, wait_for_sessions
from harness.process import HANG, Wrong, run, wait_until

# Not a multiple of what the program allocates at a time.
LIMIT = 3_000_005
STRANGER = 12_345


def as_user(user):
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")


def one_grant(tools):
    """The same user is another tenant at each socket, with that one's limits, to the byte."""
    with granting(tools) as node:
        node.grant("one", "--limit", f"device_memory={LIMIT}")
        node.grant("two", "--limit", f"device_memory={2 * LIMIT}", "--share", "25", "--cap", "50%")
        for name, limit in (("one", LIMIT), ("two", 2 * LIMIT)):
            status, said = ended(guest(node, node.socket_of(name), tools.program("quota"), limit))
            if status:
                raise Wrong(f"{name}: {said}")
        with holding(node, node.socket_of("one")), holding(node, node.socket_of("two")), holding(node, node.socket):
            for tenant in ("one", "two", "uid-0"):
                wait_for_sessions(node, tenant, 1)
            users = {session["tenant"]: os.stat(f"/proc/{session['server']}").st_uid for session in node.report()["sessions"]}
            if users["uid-0"] != 0 or len(set(users.values())) != 3:
                raise Wrong(f"root in a container is the node's user: {users}")
            if node.grants()["two"]["sessions"] != 1 or node.grants()["two"]["share"] != 25:
                raise Wrong(f"{node.grants()}")
        told = json.loads(node.command("tenant", "show", "two", "--json"))
        if (told["weight"], told["cap"]) != (25, 500):
            raise Wrong(f"{told}")


def whoever_has_the_mount(tools):
    """Another user, a user namespace, a PID namespace, and a mount of the folder elsewhere; no other way leads there."""
    mount = tools.folder("mount")
    mount.chmod(0o755)
    with granting(tools) as node:
        node.grant("pod")
        node.grant("other")
        inside = f"mount --bind {node.sockets}/pod {mount} && exec \"$@\""
        mounted = ("unshare", "--mount", "sh", "-c", inside, "sh")
        wrappers = {
            "another user": (*mounted, *as_user(STRANGER)),
            "a user namespace": (*mounted, *as_user(STRANGER), "unshare", "--user", "--map-root-user"),
            "a PID namespace": ("unshare", "--pid", "--fork", "--kill-child", *mounted),
        }
        for what, before in wrappers.items():
            with holding(node, mount / "node.sock", before=before) as (program,):
                wait_for_sessions(node, "pod", 1)
                if node.sessions("other") or node.sessions("uid-0"):
                    raise Wrong(f"{what}: {node.report()['sessions']}")
                program.kill()
            wait_for_sessions(node, "pod", 0)
        here = run([*mounted, "ls", "-A", mount]).split()
        if here != ["node.sock"]:
            raise Wrong(f"in the folder of a grant: {here}")
        status, said = ended(guest(node, node.socket_of("other"), tools.program("hold"), "1", before=as_user(STRANGER)))
        if status == 0 or "Permission denied" not in said:
            raise Wrong(f"a user of the machine reaches a socket: {status} {said}")


def not_two_tenants(tools):
    """A process that is served for a grant is not served for another one as well."""
    text = "import socket,sys\nfor path in sys.argv[1:]:\n s=socket.socket(socket.AF_UNIX)\n s.connect(path)\n"
    with granting(tools) as node:
        node.grant("one")
        node.grant("two")
        sockets = [str(node.socket_of(name)) for name in ("one", "two")] + [str(node.socket)]
        keep = "held=[]\n" + text + " held.append(s)\nsys.stdin.read()"
        both = subprocess.Popen(["python3", "-c", keep, *sockets], stdin=subprocess.PIPE)
        try:
            wait_until(HANG, "the others are refused", lambda: node.log_text().count("is served as tenant one already") == 2)
        finally:
            both.communicate()


def idempotent(tools):
    """Again it changes nothing; other amounts change it; another socket, a name that is taken, a wrong one are refused."""
    with granting(tools, "--vm", f"vm1={tools.directory}/vm1.sock") as node:
        first = json.loads(node.grant("pod", "--limit", "device_memory=4M", "--json"))
        with holding(node, node.socket_of("pod")) as (program,):
            log = node.log_text().count("grant pod was")
            again = json.loads(node.grant("pod", "--limit", "device_memory=4M", "--json"))
            if node.log_text().count("grant pod was") != log or again["limits"] != first["limits"]:
                raise Wrong("a repeated grant changed something")
            node.grant("pod", "--limit", f"device_memory={2 << 20}")
            status, said = ended(guest(node, node.socket_of("pod"), tools.program("hold"), "1"))
            # Asynchronous calls tell it later.
            if status not in (2, 3):
                raise Wrong(f"more than the new limit: {status} {said}")
            if program.poll() is not None:
                raise Wrong("the session ended")
        refused = {
            ("grant", "pod", "--socket", node.sockets / "else"): "has another socket, key or way out",
            ("grant", "other", "--socket", node.sockets / "pod"): "grant `pod` has this socket or key already",
            ("grant", "vm1", "--socket", node.sockets / "vm1"): "that of a virtual machine",
            ("grant", "uid-5", "--socket", node.sockets / "a"): "cannot be the name of a grant",
            ("grant", "..", "--socket", node.sockets / "a"): "cannot be the name of a grant",
            ("grant", "a/b", "--socket", node.sockets / "a"): "cannot be the name of a grant",
            ("grant", "a", "--socket", node.sockets / "a", "--limit", "device_memroy=1"): "no API of this node has a resource",
            ("grant", "a", "--key", "0" * 64): "no --listen HOST:PORT",
            ("grant", "a", "--socket", "/tmp"): "not empty",
        }
        for words, why in refused.items():
            said = node.command(*words, status=1)
            if why not in said:
                raise Wrong(f"{words}: {said}")
        if sorted(path.name for path in node.state.iterdir()) != ["lock", "pod.json"]:
            raise Wrong(f"{sorted(node.state.iterdir())}")


def overcommitment(tools):
    """More than a device has is refused with the device's name, by shares and by memory; changes count the new amount."""
    config = tools.folder("config") / "node.toml"
    config.write_text('[devices."testapi*"]\nmemory = "1G"\n', encoding="utf-8")
    with granting(tools, "--config", config) as node:
        node.grant("a", "--share", "60", "--limit", "device_memory=600M")
        said = node.grant("b", "--share", "41", "--limit", "device_memory=100M", status=1)
        if "grant `b` would give away more of device `*`" not in said or "101" not in said:
            raise Wrong(said)
        said = node.grant("b", "--share", "40", "--limit", "device_memory=500M", status=1)
        if "more of device `testapi*`" not in said or str(1100 << 20) not in said:
            raise Wrong(said)
        if (node.sockets / "b").exists():
            raise Wrong("a grant that was refused leaves a folder")
        node.grant("b", "--share", "40", "--limit", "device_memory=424M")
        node.grant("a", "--share", "61", "--limit", "device_memory=600M", status=1)
        node.grant("a", "--share", "60", "--limit", "device_memory=600M")
        node.grant("c", "--share", "50", "--limit", "device_memory=1G", "--overcommit")
        # With it there is too much; what a grant has already, or less of it, is given all the same.
        node.grant("a", "--share", "60", "--limit", "device_memory=600M")
        node.grant("a", "--share", "50", "--limit", "device_memory=500M")
        node.grant("a", "--share", "51", "--limit", "device_memory=500M", status=1)
        node.revoke("a")
        node.grant("d", "--share", "11", status=1)


def labelled(tools):
    """Each line of the tenant's metrics has the grant's labels, and no other tenant's."""
    with granting(tools) as node:
        node.grant("pod", "--label", "namespace=a b", "--label", "pod=x")
        node.grant("plain")
        said = node.grant("c", "--label", "tenant=pod", status=1)
        if "is no label" not in said:
            raise Wrong(said)
        with holding(node, node.socket_of("pod")), holding(node, node.socket_of("plain")):
            wait_for_sessions(node, "pod", 1)
            wait_for_sessions(node, "plain", 1)
            lines = [line for line in node.command("metrics").splitlines() if 'tenant="' in line]
        of_pod = [line for line in lines if 'tenant="pod"' in line]
        if len(of_pod) < 4 or not all('namespace="a b",pod="x"}' in line for line in of_pod):
            raise Wrong("\n".join(of_pod))
        if [line for line in lines if line not in of_pod and "namespace" in line]:
            raise Wrong("\n".join(lines))


def revoked_under_load(tools):
    """Sessions end, all that they held is given back before the answer, and the name is free."""
    with granting(tools) as node:
        node.grant("pod", "--limit", "device_memory=64M")
        with holding(node, node.socket_of("pod"), times=8) as programs, holding(node, node.socket) as (bystander,):
            wait_for_sessions(node, "pod", 8)
            servers = {session["server"] for session in node.sessions("pod")}
            answer = node.revoke("pod")
            memory = [freed["amount"] for freed in answer["freed"] if freed.get("device") == "held"]
            if (answer["sessions"], memory) != (8, [8 << 20]):
                raise Wrong(f"{answer}")
            if node.sessions("pod") or any(os.path.exists(f"/proc/{server}") for server in servers):
                raise Wrong("the answer came before API servers were reaped")
            if [program.wait(timeout=HANG) for program in programs] != [3] * 8:
                raise Wrong("a program was not told that its device is lost")
            if (node.sockets / "pod").exists() or (node.state / "pod.json").exists() or "pod" in node.grants():
                raise Wrong("something is left")
            if "there is no grant pod" not in node.command("revoke", "pod"):
                raise Wrong("a second revocation")
            node.grant("pod", "--limit", "device_memory=3M")
            tenant = json.loads(node.command("tenant", "show", "pod", "--json"))
            if [account["used"] for account in tenant["accounts"]] != [0] * len(tenant["accounts"]):
                raise Wrong(f"the new grant begins with what the old one had: {tenant['accounts']}")
            with holding(node, node.socket_of("pod")):
                wait_for_sessions(node, "pod", 1)
            if bystander.poll() is not None:
                raise Wrong("another tenant's program ended")


def expired(tools):
    """It ends by itself, with its sessions; also while the node is not there."""
    with granting(tools) as node:
        node.grant("brief", "--expires", "2s")
        with holding(node, node.socket_of("brief")) as (program,):
            if program.wait(timeout=HANG) != 3:
                raise Wrong("the session outlives its grant")
        wait_until(HANG, "the grant is gone", lambda: not node.grants() and not (node.state / "brief.json").exists())
        node.grant("away", "--expires", "1s")
        left = node.kill()
        path = node.state / "away.json"
        file = json.loads(path.read_text(encoding="utf-8"))
        file["grant"]["expires"] = 1
        path.write_text(json.dumps(file), encoding="utf-8")
        wait_until(HANG, "its processes are gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in left))
        node.start()
        if node.grants() or path.exists() or (node.sockets / "away").exists():
            raise Wrong("it is there again")


CASES = {
    "each socket is a tenant": one_grant,
    "whoever has the mount": whoever_has_the_mount,
    "a process is one grant's": not_two_tenants,
    "repeated and refused": idempotent,
    "overcommitment": overcommitment,
    "labelled": labelled,
    "revoked under load": revoked_under_load,
    "expired": expired,
}
