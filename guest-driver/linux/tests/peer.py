#!/usr/bin/env python3
"""The other end of the driver's tests: a node whose API servers do what a guest's test program tells them.

peer.py AVIARY FOLDER: listens at FOLDER/node (for devices) and FOLDER/vm (for the VMM), and serves each VMM that
connects with `AVIARY vm-device`, as a node does. Commands are those of check.h.
"""

import array
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

LANE_OPEN, MEMORY_MAP, MEMORY_UNMAP, MEMORY_DONE, WAKE = 1, 5, 6, 7, 8
(ECHO, LOAD, STORE_WAKE, HANG_UP, SUM, FILL, SLOW, REFUSE, BELLS, PONG, SERVE_BELL, KILL_DEVICE,
 STOP_DEVICE, PAUSE_VM) = range(1, 15)
CONTROL = struct.Struct("<IIQQQ")
WELCOME = struct.pack("<4sIQQQQQ", b"AVok", 48, 1, 0, 0, 1, 0)


class Vm:
    """Devices, one after the other, for the VMMs that connect."""

    def __init__(self, aviary, folder):
        self.command = [aviary, "vm-device", "--name", "test", "--node", f"{folder}/node"]
        self.listener = listen(f"{folder}/vm")
        self.monitor = f"{folder}/qmp"
        self.device = None

    def serve(self):
        while True:
            self.device = subprocess.Popen(self.command, stdin=self.listener)
            self.device.wait()

    def kill(self):
        self.device.kill()

    def stop(self, seconds):
        pid = self.device.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def pause(self, seconds):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.monitor)
        stream = connection.makefile("rw")
        for command in ["qmp_capabilities", "stop", "cont"]:
            if command == "cont":
                time.sleep(seconds)
            stream.write(json.dumps({"execute": command}))
            stream.flush()
            while "return" not in json.loads(stream.readline()):
                pass
        connection.close()


class Memory:
    """The guest's memory as far as it is mapped: arena offset -> pieces of files."""

    def __init__(self):
        self.pieces = {}

    def map(self, offset, extents, fd, writable):
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        for start, length in extents:
            self.pieces[offset] = mmap.mmap(fd, length, mmap.MAP_SHARED, protection, offset=start)
            offset += length

    def unmap(self, offset, length):
        for at in [at for at in self.pieces if offset <= at < offset + length]:
            self.pieces.pop(at).close()

    def parts(self, offset, length):
        for at, piece in self.pieces.items():
            start, end = max(offset, at), min(offset + length, at + len(piece))
            if start < end:
                yield piece, start - at, end - at

    def sum(self, offset, length):
        return sum(sum(piece[start:end]) for piece, start, end in self.parts(offset, length))

    def fill(self, offset, length, byte):
        for piece, start, end in self.parts(offset, length):
            piece[start:end] = bytes([byte]) * (end - start)

    def load(self, offset):
        return next((struct.unpack_from("<I", piece, start)[0] for piece, start, _ in self.parts(offset, 4)), 0)

    def store(self, offset, value):
        for piece, start, _ in self.parts(offset, 4):
            struct.pack_into("<I", piece, start, value)


class Server:
    """One API server: of one session."""

    def __init__(self, connection, vm):
        self.connection, self.vm, self.memory = connection, vm, Memory()
        self.bytes, self.files = b"", []
        self.slow, self.refuse = 0, 0
        self.bells, self.bell_answers = {}, {}

    def receive(self):
        data, ancillary, _, _ = self.connection.recvmsg(65536, socket.CMSG_SPACE(16 * 4))
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[:len(content) - len(content) % 4])
                self.files.extend(fds)
        if not data:
            raise EOFError
        self.bytes += data

    def take(self, length):
        while len(self.bytes) < length:
            self.receive()
        taken, self.bytes = self.bytes[:length], self.bytes[length:]
        return taken

    def say(self, kind, lane=0, offset=0, length=0, flags=0):
        self.connection.sendall(CONTROL.pack(kind, lane, offset, length, flags))

    def run(self):
        try:
            _, length = struct.unpack("<4sI", self.take(8))
            self.take(length - 8)
            self.connection.sendall(WELCOME)
            while True:
                self.handle(*CONTROL.unpack(self.take(CONTROL.size)))
        except (EOFError, OSError):
            pass
        finally:
            for fd in self.files:
                os.close(fd)
            self.connection.close()

    def handle(self, kind, lane, offset, length, flags):
        if kind == MEMORY_MAP:
            self.map(lane, offset, flags)
        elif kind == MEMORY_UNMAP:
            self.memory.unmap(offset, length)
            self.say(MEMORY_DONE, 0, offset)
        elif kind == WAKE:
            self.bells[offset] = self.bells.get(offset, 0) + 1
            if offset in self.bell_answers:
                word, value = self.bell_answers.pop(offset)
                self.wake(word, value)
        elif kind == LANE_OPEN:
            answer = self.obey(lane, offset, length, flags)
            if answer is not None:
                self.say(2, lane, offset, length, answer)

    def map(self, count, offset, flags):
        extents = [struct.unpack("<QQ", self.take(16)) for _ in range(count)]
        fd = self.files.pop(0)
        error, self.refuse = self.refuse, 0
        if self.slow:
            time.sleep(self.slow / 1000)
        if not error:
            self.memory.map(offset, extents, fd, flags & 1)
        os.close(fd)
        self.say(MEMORY_DONE, error, offset)

    def wake(self, offset, value):
        self.memory.store(offset, value)
        self.say(WAKE, 0, offset)

    def obey(self, command, offset, length, flags):
        if command == ECHO:
            return flags
        if command == LOAD:
            return self.memory.load(offset)
        if command == STORE_WAKE:
            self.wake(offset, flags)
        elif command == HANG_UP:
            raise EOFError
        elif command == SUM:
            return self.memory.sum(offset, length)
        elif command == FILL:
            self.memory.fill(offset, length, flags)
        elif command == SLOW:
            self.slow = flags
        elif command == REFUSE:
            self.refuse = flags
        elif command == BELLS:
            return self.bells.get(offset, 0)
        elif command == SERVE_BELL:
            self.bell_answers[offset] = (length, flags)
        elif command == KILL_DEVICE:
            self.vm.kill()
        elif command == STOP_DEVICE:
            threading.Thread(target=self.vm.stop, args=[flags / 1000], daemon=True).start()
        elif command == PAUSE_VM:
            threading.Thread(target=self.vm.pause, args=[flags / 1000], daemon=True).start()
        return 0


def listen(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(100)
    return listener


def main():
    aviary, folder = sys.argv[1:]
    vm, node = Vm(aviary, folder), listen(f"{folder}/node")

    def accept():
        while True:
            connection, _ = node.accept()
            threading.Thread(target=Server(connection, vm).run, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    # A device ends with the thread that started it.
    vm.serve()


main()
