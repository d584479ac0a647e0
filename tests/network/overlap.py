"""Shows by counts of bytes that copying and sending go on at the same time, in both directions.

    overlap.py AVIARY PORT TLS-FOLDER PROGRAM STRANDS

PROGRAM (overlap.c) stops in the middle of its copy to the device: most of what it has copied so far must have left its machine. On the
way back this proxy stops: what has arrived until then must be in the program's memory.
"""

import socket
import subprocess
import sys
import threading
import time

AVIARY, PORT, FOLDER, PROGRAM, STRANDS = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
CHUNK = 1 << 15
MIB = 1 << 20
# The program has copied 6 MiB when it stops, and tells of whole parts of 1.1 MiB.
LEFT_AT_LEAST = 5 * MIB
# Of 8 MiB. The rest of it may be in strands that stop in the middle of a piece.
PASSED_AT_MOST = 6 * MIB
HANG = 300


class Proxy:
    """Forwards connections, counts their bytes, and stops those to the program behind a number of them."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.changed = threading.Condition()
        self.up = self.down = self.connections = self.ended = 0
        self.limit: int | None = None
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", PORT))
            for pump in (self.pump_up, self.pump_down):
                threading.Thread(target=pump, args=(near, far), daemon=True).start()

    def pump_up(self, near: socket.socket, far: socket.socket) -> None:
        with self.changed:
            self.connections += 1
        try:
            while data := near.recv(CHUNK):
                with self.changed:
                    self.up += len(data)
                far.sendall(data)
            # What was read has gone on: the node hears the relay's farewell before the end.
            far.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        with self.changed:
            self.ended += 1

    def pump_down(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while data := far.recv(CHUNK):
                with self.changed:
                    self.changed.wait_for(lambda: self.limit is None or self.down < self.limit)
                    self.down += len(data)
                near.sendall(data)
        except OSError:
            pass
        near.close()

    def let(self, more: int | None) -> None:
        """To the program go so many bytes more; `None`: all."""
        with self.changed:
            self.limit = None if more is None else self.down + more
            self.changed.notify_all()


def until(true, what: str) -> None:
    end = time.monotonic() + HANG
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"never: {what}")
        time.sleep(0.01)


def main() -> int:
    proxy = Proxy()
    address = f"127.0.0.1:{proxy.listener.getsockname()[1]}"
    command = [AVIARY, "run", "--api", "testapi", "--server", address, "--tls-dir", FOLDER, "--strands", STRANDS]
    program = subprocess.Popen([*command, "--", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert program.stdin and program.stdout

    def expect(line: str) -> None:
        said = program.stdout.readline().strip()
        if said != line:
            raise SystemExit(f"the program says {said!r} instead of {line!r}, with {proxy.up} and {proxy.down} bytes")

    def go() -> None:
        program.stdin.write("go\n")

    expect("ready")
    until(lambda: proxy.connections >= int(STRANDS), f"{STRANDS} connections, but {proxy.connections}")
    before = proxy.up
    go()
    expect("stopped")
    until(lambda: proxy.up - before >= LEFT_AT_LEAST, f"{proxy.up - before} bytes have left before the call's message")
    left = proxy.up - before
    go()
    expect("reads")
    proxy.let(PASSED_AT_MOST)
    go()
    expect("early")
    proxy.let(None)
    expect("equal")
    status = program.wait()
    until(lambda: proxy.ended == proxy.connections, "the connections end")
    print(f"{left} bytes had left while the program copied, {STRANDS} connections; status {status}")
    return 0 if status == 0 and left < 8 * MIB else 1


sys.exit(main())
