"""A proxy that its standard input stops and starts.

    proxy.py PORT

Forwards connections to 127.0.0.1:PORT. `close`: ends all of them in order, and each new one at once; `open`: serves again.
"""

import socket
import sys
import threading


class Proxy:
    """The connections that live, and if new ones are served."""

    def __init__(self, port: int):
        self.port = port
        self.is_open = True
        self.lock = threading.Lock()
        self.sockets: list[socket.socket] = []

    def serve(self, listener: socket.socket) -> None:
        while True:
            near, _ = listener.accept()
            with self.lock:
                if not self.is_open:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.port))
                self.sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    @staticmethod
    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            end(one)

    def close(self) -> None:
        with self.lock:
            self.is_open = False
            for one in self.sockets:
                end(one)
            self.sockets.clear()

    def open(self) -> None:
        with self.lock:
            self.is_open = True


def end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def main() -> None:
    proxy = Proxy(int(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
    print("listens", listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        if line == "close\n":
            proxy.close()
            print("closed", flush=True)
        elif line == "open\n":
            proxy.open()


if __name__ == "__main__":
    main()
