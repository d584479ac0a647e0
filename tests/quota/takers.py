"""A node with tenants, its guests, and what its admin socket says."""

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

from harness.node import Node
from harness.process import AVIARY, HANG, ROOT, Wrong, run

HERE = Path(__file__).resolve().parent


class Tools:
    """The compiled programs and where the libraries lie."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.vendor = self.directory / "testapi"
        run(["sh", ROOT / "apis/testapi/build", self.vendor])
        for source in HERE.glob("*.c"):
            flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "apis/testapi/include"]
            libraries = ["-lOpenCL"] if source.stem.endswith("_cl") else ["-L", self.vendor, "-ltestapi", "-lpthread"]
            run(["gcc", *flags, "-o", self.vendor / source.stem, source, *libraries])

    def program(self, name):
        return self.vendor / name


def guests_environment(node):
    """Environment of any tenant's guest: the guest library lies under the vendor library's own name."""
    library = ROOT / "target/aviary/testapi"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AVIARY_")}
    return {**plain, "LD_LIBRARY_PATH": str(library), "AVIARY_SERVER": node.address}


# The users of these tests have no entry in the user database.
SEPARATE = 'unknown_users = "separate"\n'


@contextlib.contextmanager
def serving(tools, config, *options, unknown=SEPARATE):
    """A node with this configuration file, which lies beside its socket."""
    directory = tools.directory / f"node-{len(list(tools.directory.iterdir()))}"
    directory.mkdir()
    path = directory / "node.toml"
    path.write_text(unknown + config, encoding="utf-8")
    node = Node({"LD_LIBRARY_PATH": str(tools.vendor)}, "--config", path, "--mode", "666", *options)
    # Guests of other users attach.
    node.directory.chmod(0o755)
    node.config = path
    try:
        yield node
        node.stop()
    finally:
        node.discard()


def ask(node, request):
    """One question over the admin socket, without the cost of a process."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HANG)
        connection.connect(str(node.socket.with_suffix(".admin")))
        secret = node.socket.with_suffix(".secret")
        line = f"secret {secret.read_text()}\n" if secret.exists() else ""
        connection.sendall(line.encode() + json.dumps(request).encode() + b"\n")
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    answer = json.loads(b"".join(parts))
    if isinstance(answer, dict) and "error" in answer:
        raise Wrong(answer["error"])
    return answer


def accounts(node, tenant, resource="device_memory", device=None):
    """One account of one tenant, on a device or of all together; zeros if it has none."""
    for found in ask(node, "tenants"):
        for account in found["accounts"]:
            if (found["name"], account["resource"], account.get("device")) == (tenant, resource, device):
                return account
    return {"limit": None, "used": 0, "held": 0, "peak": 0, "refused": 0}


def command(node, *arguments):
    """An `aviary` command for this node: status and output."""
    done = subprocess.run(
        [AVIARY, *arguments, "--server", node.address], capture_output=True, text=True, check=False, timeout=HANG
    )
    return done.returncode, done.stdout + done.stderr


class Taker:
    """A guest that does what it is told: see taker.c."""

    def __init__(self, tools, environment, piece, *arguments, prefix=(), **options):
        self.process = subprocess.Popen(
            [*prefix, tools.program("taker"), str(piece), *arguments], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )
        self.attached = self.process.stdout.readline().strip() == "ready"

    def tell(self, letter):
        """Answers how many pieces it holds then."""
        try:
            self.process.stdin.write(f"{letter}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline().strip()
        if not line.isdigit():
            raise Wrong(f"taker {letter}: {line!r} {self.errors() if not line else ''}")
        return int(line)

    def errors(self):
        """Ends it."""
        self.process.stdin.close()
        return self.process.stderr.read()

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(timeout=HANG)
        self.process.stdout.close()
        self.process.stderr.close()


@contextlib.contextmanager
def taking(*arguments, **options):
    """A taker that must attach."""
    taker = Taker(*arguments, **options)
    try:
        if not taker.attached:
            raise Wrong(f"a guest does not attach: {taker.errors()}")
        yield taker
    finally:
        with contextlib.suppress(OSError):
            taker.process.stdin.close()
        try:
            taker.process.wait(timeout=HANG)
        except subprocess.TimeoutExpired:
            taker.process.kill()
            taker.process.wait()
        taker.process.stdout.close()
        taker.process.stderr.close()


def check(condition, text):
    if not condition:
        raise Wrong(text)
