"""Cuts connections of a session with several strands, at any byte, while a program copies.

    cuts.py AVIARY PORT TLS-FOLDER PROGRAM CUTS STRANDS

PROGRAM does a round for each line of its standard input (carry.c). Of every six cuts one takes all connections, the others one of
them at random. Ends with 0 if all rounds give what they give natively. Prints how many connections there were at a time.
"""

import random
import socket
import subprocess
import sys
import threading
import time

AVIARY, PORT, FOLDER, PROGRAM = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
CUTS, STRANDS = int(sys.argv[5]), sys.argv[6]
CHUNK = 1 << 15
# Rounds in which all connections must have been used at a time before the first cut: after cuts some are always missing.
ROUNDS = 200


class Line:
    """A connection through this proxy."""

    def __init__(self, near: socket.socket, far: socket.socket):
        self.ends = (near, far)
        self.bytes = 0
        self.budget: int | None = None

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(CHUNK):
                left = self.budget
                if left is not None and left < len(data):
                    sink.sendall(data[:left])
                    break
                if left is not None:
                    self.budget = left - len(data)
                sink.sendall(data)
                self.bytes += len(data)
        except OSError:
            pass
        self.cut()

    def cut(self) -> None:
        for end in self.ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Proxy:
    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.lines: list[Line] = []
        self.most = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", PORT))
            line = Line(near, far)
            self.lines.append(line)
            pumps = [threading.Thread(target=line.pump, args=pair, daemon=True) for pair in ((near, far), (far, near))]
            for pump in pumps:
                pump.start()
            threading.Thread(target=self.reap, args=(line, pumps), daemon=True).start()

    def reap(self, line: Line, pumps: list[threading.Thread]) -> None:
        for pump in pumps:
            pump.join()
        self.lines.remove(line)

    def busy(self) -> list[Line]:
        """Connections that have carried more than a handshake."""
        busy = [line for line in list(self.lines) if line.bytes > 20_000]
        self.most = max(self.most, len(busy))
        return busy


def main() -> int:
    proxy = Proxy()
    address = f"127.0.0.1:{proxy.listener.getsockname()[1]}"
    command = [AVIARY, "run", "--api", "testapi", "--server", address, "--tls-dir", FOLDER, "--strands", STRANDS]
    program = subprocess.Popen([*command, "--", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert program.stdin and program.stdout
    chance, remote, cuts = random.Random(7), [], 0
    done = threading.Event()

    def cutting() -> None:
        nonlocal cuts
        while len(proxy.busy()) < int(STRANDS) and len(remote) < ROUNDS and not done.is_set():
            time.sleep(0.002)
        while cuts < CUTS and not done.is_set():
            lines = proxy.busy()
            if not lines or (int(STRANDS) > 1 and len(lines) < 2):
                time.sleep(0.005)
                continue
            chosen = lines if cuts % 6 == 5 else [chance.choice(lines)]
            for line in chosen:
                line.budget = chance.randrange(300_000)
            # Until they are gone: each takes its part of what is copied.
            while any(line in proxy.lines for line in chosen) and not done.is_set():
                time.sleep(0.002)
            cuts += 1

    cutter = threading.Thread(target=cutting, daemon=True)
    cutter.start()
    while cutter.is_alive() or len(remote) < 3:
        program.stdin.write("go\n")
        line = program.stdout.readline()
        if not line:
            break
        remote.append(line)
    done.set()
    program.stdin.close()
    status = program.wait()
    native = subprocess.run([PROGRAM], input="go\n" * len(remote), stdout=subprocess.PIPE, text=True, check=False).stdout
    same = native == "".join(remote)
    print(f"{cuts} cuts in {len(remote)} rounds, {proxy.most} connections at a time; status {status}, results {'equal' if same else 'differ'}")
    return 0 if same and status == 0 and cuts >= CUTS and proxy.most >= int(STRANDS) else 1


sys.exit(main())
