"""A node under test and what can be seen of it from outside: processes, descriptors, files."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from harness.process import AVIARY, HANG, Wrong, alive, children, descriptors, wait_until


def is_asked_for_devices(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] in ([b"list-devices"], [b"list-holders"])
    return False


class Node:
    """`aviary serve` on a socket of its own. It can be killed and started again."""

    def __init__(self, environment, *options, program=AVIARY):
        self.program = program
        self.directory = Path(tempfile.mkdtemp(prefix="aviary-robust-"))
        (self.directory / "run").mkdir()
        self.socket = self.directory / "run" / "node.sock"
        self.address = f"unix:{self.socket}"
        self.log = self.directory / "log"
        # By the variable its API servers and guests are found, also when nobody is their parent any more.
        self.mark = {"AVIARY_NODE_UNDER_TEST": str(self.directory)}
        self.environment = {**os.environ, **environment, **self.mark}
        self.options = options
        self.process = None
        self.start()

    @property
    def pid(self):
        return self.process.pid

    def start(self, limits=None):
        level = () if "--log-level" in self.options else ("--log-level", "info")
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", "--listen", self.address, *level,
                 *(f"--pass-environment={name}" for name in ("AVIARY_ROBUST", "TESTAPI_*", "REFCUDA_*")), *self.options],
                env=self.environment, stderr=log, preexec_fn=limits,
            )
        wait_until(HANG, "the node answers", lambda: self.process.poll() is not None or self.report())
        if self.process.poll() is not None:
            raise Wrong(f"the node ended with status {self.process.returncode}: {self.log.read_text()[-2000:]}")

    def kill(self):
        """Returns the API servers that it leaves behind."""
        left = children(self.pid)
        self.process.kill()
        self.process.wait()
        return left

    def ask(self, request):
        """The answer to one request at the admin socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(HANG)
            connection.connect(str(self.socket.with_suffix(".admin")))
            secret = self.socket.with_suffix(".secret")
            line = f"secret {secret.read_text()}\n" if secret.exists() else ""
            connection.sendall(line.encode() + json.dumps(request).encode() + b"\n")
            text = b"".join(iter(lambda: connection.recv(65536), b""))
        return json.loads(text)

    def report(self):
        done = subprocess.run(
            [AVIARY, "ps", "--json", "--server", self.address], capture_output=True, text=True, check=False, timeout=HANG
        )
        return json.loads(done.stdout)[0] if done.returncode == 0 else None

    def servers(self):
        return children(self.pid)

    def settle(self, spares=1, seconds=HANG):
        """Waits until no session is left, the pool is full and the zygote ready."""
        def settled():
            report = self.report()
            if not report or report["sessions"] or report["spares"] != spares or not report["zygote"]:
                return False
            servers = self.servers()
            return report["zygote"] in servers and len(servers) == spares + 1
        wait_until(seconds, "no session is left and the pool is full", settled)
        time.sleep(0.1)

    def settle_pool(self, seconds=HANG):
        """Waits until the pool is full and the zygote ready, with any sessions attached."""
        def full():
            report = self.report()
            return report and report["spares"] and report["zygote"]
        wait_until(seconds, "the pool is full", full)
        time.sleep(0.5)

    def shared_memory(self):
        """Shared memory that the node holds: descriptors and mappings."""
        held = [name for name in descriptors(self.pid) if "memfd:" in name]
        maps = Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8").splitlines()
        return held + [line for line in maps if "memfd:" in line]

    def stop(self):
        """Politely; then nothing may be left in its folder."""
        servers = self.servers()
        # What the node asks for devices, which ends by a signal that it gets when the node has ended.
        asked = [server for server in servers if is_asked_for_devices(server)]
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=HANG)
        except subprocess.TimeoutExpired as expired:
            self.process.kill()
            self.process.wait()
            raise Wrong("the node does not stop on SIGTERM") from expired
        left = [server for server in servers if server not in asked and alive(server)]
        wait_until(HANG, "what is asked for devices ends with the node", lambda: not any(map(alive, asked)))
        files = [path.name for path in self.socket.parent.iterdir()]
        if status or left or files:
            raise Wrong(f"after SIGTERM: status {status}, API servers {left}, files {files}")

    def discard(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def running(environment, *options):
    node = Node(environment, *options)
    try:
        yield node
        node.stop()
    finally:
        node.discard()


@contextlib.contextmanager
def guest_environment(api, environment, address):
    """What `aviary run` sets, for as long as it runs: the stand-ins' folder is its own."""
    command = [AVIARY, "run", "--api", api, "--server", address, "--", "sh", "-c", "env -0; echo; cat"]
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        pairs = (pair.split("=", 1) for pair in run.stdout.readline().rstrip("\n").split("\0") if "=" in pair)
        try:
            yield dict(pairs)
        finally:
            run.stdin.close()
