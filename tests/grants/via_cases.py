"""Guests that are carried to another node: without a credential and a network of their own."""

import contextlib
import json
import os
import signal
import socket
import threading

from granting import GrantingNode, ended, guest, holding
from harness.process import AVIARY, HANG, Wrong, alive, children, run, wait_until
from key_cases import free_port
from proxy import Proxy


class Pair:
    """A node with devices, and one that carries guests to it."""

    def __init__(self, tools, far=(), near=(), days=None):
        """`far`, `near`: added to the nodes' environments; `days`: the far node's certificate is one of its own, for so long."""
        self.tools, self.port, self.tls = tools, free_port(), tools.folder("tls")
        run([AVIARY, "tls", "init", self.tls, "--name", "127.0.0.1"])
        if days:
            run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.tls / "node/node.key",
                 "-out", self.tls / "node/node.pem", "-days", str(days), "-subj", "/CN=brief"])
        certificate = self.tls / "node/node.pem"
        told = run(["openssl", "x509", "-in", certificate, "-noout", "-fingerprint", "-sha256"])
        self.pin = told.split("=")[1].strip().replace(":", "").lower()
        self.far = GrantingNode(tools, "--listen", f"127.0.0.1:{self.port}", "--tls-dir", self.tls / "node", environment=far)
        self.near = GrantingNode(tools, environment=near)

    def grant(self, name, *limits, pin=None, port=None, near=()):
        """On both nodes; what the far one gives, and `near`: what is said to the other one."""
        said = self.near.grant(name, "--via", f"127.0.0.1:{port or self.port}", "--pin", pin or self.pin, "--json", *near)
        self.far.command("grant", name, "--key", json.loads(said)["via"]["key"], *limits)

    def relays(self):
        """Those with guests: other children are API servers and zygotes."""
        return [pid for pid in children(self.near.pid) if b"grant-relay" in command_of(pid)]


def command_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


@contextlib.contextmanager
def pair(tools):
    both = Pair(tools)
    try:
        yield both
        both.near.stop()
        both.far.stop()
    finally:
        both.near.discard()
        both.far.discard()


def carried(tools):
    """The far node's grant counts, to the byte; the pod has no network and no file with a key; nothing is left."""
    with pair(tools) as both:
        limit = 3_000_005
        both.grant("pod", "--limit", f"device_memory={limit}")
        place = both.near.socket_of("pod")
        alone = ("unshare", "--net", "--")
        status, said = ended(guest(both.near, place, tools.program("quota"), limit, before=alone))
        if status:
            raise Wrong(said)
        with holding(both.near, place, before=alone, times=2) as programs:
            wait_until(HANG, "the far node has two sessions", lambda: len(both.far.sessions("pod")) == 2)
            # That of the first program ends a moment after it.
            wait_until(HANG, "two relays", lambda: both.near.grants()["pod"]["sessions"] == 2 == len(both.relays()))
            if both.near.report()["sessions"]:
                raise Wrong(f"{both.near.report()}")
            confined(both)
        wait_until(HANG, "the relays end with their guests", lambda: not both.relays())
        wait_until(HANG, "the far node's sessions end", lambda: not both.far.sessions("pod"))
        if [program.poll() is None for program in programs] != [False, False]:
            raise Wrong("the programs go on")
        inside = sorted(path.name for path in both.near.socket_of("pod").parent.iterdir())
        if inside != ["node.sock"] or oct((both.near.state / "pod.via").stat().st_mode & 0o77) != "0o0":
            raise Wrong(f"{inside}")


def confined(both):
    """A relay is not root, has no capability, filters its calls; and what makes its connections is not root either."""
    for relay in both.relays():
        (dialer,) = [pid for pid in children(relay) if b"dial" in command_of(pid)]
        for pid, filtered in ((relay, "2"), (dialer, "0")):
            told = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status", encoding="utf-8").read().splitlines())
            if told["Uid"].split() == ["0"] * 4 or int(told["CapEff"], 16) or told["Seccomp"].strip() != filtered:
                raise Wrong(f"{pid}: {told['Uid']} {told['CapEff']} {told['Seccomp']}")
        if os.stat(f"/proc/{relay}/fd").st_uid != 0:
            raise Wrong("another process of its user can read the relay's memory")


def reconnects(tools):
    """A broken connection is one long call; a killed relay is a lost device, and the next program has another."""
    with pair(tools) as both:
        # It stays open: the proxy's thread accepts there until the process ends.
        listener, proxy = socket.create_server(("127.0.0.1", 0)), Proxy(both.port)
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        both.grant("pod", port=listener.getsockname()[1])
        with holding(both.near, both.near.socket_of("pod")) as (program,):
            def session():
                return next(iter(both.far.sessions("pod")), {})
            wait_until(HANG, "a session", session)
            proxy.close()
            wait_until(HANG, "the far node misses the connection", lambda: "away_ms" in session())
            before = session()["counters"]["calls"]
            proxy.open()
            wait_until(HANG, "calls go on", lambda: program.poll() is not None or session()["counters"]["calls"] > before)
            if program.poll() is not None:
                raise Wrong(f"the program ended: {program.returncode}")
            (relay,) = both.relays()
            os.kill(relay, signal.SIGKILL)
            if program.wait(timeout=HANG) != 3:
                raise Wrong("its device is not lost")
        wait_until(HANG, "the relay is gone", lambda: not alive(relay))
        status, said = ended(guest(both.near, both.near.socket_of("pod"), tools.program("hold"), "0"))
        if status:
            raise Wrong(said)
        # The killed one's session waits for it.
        both.far.command("end", "--tenant", "pod")


def taken_back(tools):
    """Revoked here, guests are lost and the key is gone; revoked there, they are refused with the reason; so is a wrong node."""
    with pair(tools) as both:
        both.grant("pod")
        with holding(both.near, both.near.socket_of("pod")) as (program,):
            answer = both.near.revoke("pod")
            if answer["sessions"] != 1 or program.wait(timeout=HANG) != 3 or both.relays():
                raise Wrong(f"{answer} {both.relays()}")
        if [path.name for path in both.near.state.iterdir()] != ["lock"]:
            raise Wrong(f"{list(both.near.state.iterdir())}")
        both.far.revoke("pod")
        both.grant("pod")
        both.far.revoke("pod")
        status, said = ended(guest(both.near, both.near.socket_of("pod"), tools.program("hold"), "1"))
        if status == 0 or "refuses our" not in said:
            raise Wrong(f"{status} {said}")
        both.grant("other", pin="0" * 64)
        status, said = ended(guest(both.near, both.near.socket_of("other"), tools.program("hold"), "1"))
        if status == 0 or "another fingerprint" not in said:
            raise Wrong(f"{status} {said}")


CASES = {"carried": carried, "carried on": reconnects, "carried no more": taken_back}
