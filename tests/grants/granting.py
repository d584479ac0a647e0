"""A node with grants, and guests of them."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from harness.node import Node
from harness.process import AVIARY, HANG, ROOT, Wrong, run, wait_until


class Tools:
    """testapi's library and programs."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.vendor = self.directory / "testapi"
        run(["sh", ROOT / "apis/testapi/build", self.vendor])

    def program(self, name):
        return self.vendor / name

    def folder(self, name):
        """A new folder that only root enters: above those of sockets."""
        path = self.directory / f"{name}-{len(list(self.directory.iterdir()))}"
        path.mkdir(mode=0o700)
        return path


class GrantingNode(Node):
    """It keeps its grants in `state`; those with sockets have their folders in `sockets`."""

    def __init__(self, tools, *options, environment=()):
        self.tools = tools
        self.state, self.sockets = tools.folder("state") / "grants", tools.folder("sockets")
        super().__init__(
            {"LD_LIBRARY_PATH": str(tools.vendor), **dict(environment)}, "--grants", self.state, "--mode", "666", *options
        )
        # Guests of other users attach at its own socket, too.
        self.directory.chmod(0o755)

    def command(self, *words, status=0):
        """Output of a command about this node, which must end so."""
        done = subprocess.run(
            [AVIARY, *map(str, words), "--server", self.address], capture_output=True, text=True, timeout=HANG, check=False,
            env={**os.environ, "LD_LIBRARY_PATH": str(self.tools.vendor)},
        )
        if done.returncode != status:
            raise Wrong(f"{words}: status {done.returncode}, not {status}: {done.stdout}{done.stderr}")
        return done.stdout if status == 0 else done.stderr

    def grant(self, name, *options, status=0):
        return self.command("grant", name, "--socket", self.sockets / name, *options, status=status)

    def revoke(self, name):
        return json.loads(self.command("revoke", name, "--json"))

    def grants(self):
        return {grant["name"]: grant for grant in json.loads(self.command("grant", "list", "--json"))}

    def socket_of(self, name):
        return self.sockets / name / "node.sock"

    def sessions(self, tenant):
        report = self.report()
        return [one for one in report["sessions"] if one["tenant"] == tenant and one["api"]] if report else []

    def log_text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")


def guest(node, socket, *words, before=()):
    """A program whose library connects there; `before`: what starts it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AVIARY_")}
    environment = {
        **plain, **node.mark, "LD_LIBRARY_PATH": str(ROOT / "target/aviary/testapi"), "AVIARY_SERVER": f"unix:{socket}"
    }
    return subprocess.Popen(
        [*map(str, before), *map(str, words)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )


def ended(program, seconds=HANG):
    """Status and what it has printed."""
    out, err = program.communicate(timeout=seconds)
    return program.returncode, out + err


@contextlib.contextmanager
def holding(node, socket, *, before=(), times=1):
    """Programs with a session each and 1 MiB of `device_memory` that make calls until they are told to end."""
    programs = [guest(node, socket, node.tools.program("hold"), "600", before=before) for _ in range(times)]
    try:
        for program in programs:
            line = program.stdout.readline()
            if not line.startswith("holding"):
                raise Wrong(f"a guest of {socket} has no session: {line}{program.stderr.read()}")
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.communicate()


@contextlib.contextmanager
def granting(tools, *options, environment=()):
    node = GrantingNode(tools, *options, environment=environment)
    try:
        yield node
        node.stop()
    finally:
        node.discard()


def wait_for_sessions(node, tenant, count):
    wait_until(HANG, f"{count} sessions of {tenant}", lambda: len(node.sessions(tenant)) == count)
