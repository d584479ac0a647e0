"""What is left of a program that is killed in the middle of a copy, and what others notice of it."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time

KINDS = [("in", "pageable"), ("in", "pinned"), ("out", "pageable"), ("out", "pinned")]
WITHIN_SECONDS = 1.0


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Device:
    """Memory in use on the first device, asked of NVIDIA's own library."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        if self.library.nvmlInit_v2() or self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)):
            raise RuntimeError("deaths: NVML does not answer")

    def used(self):
        memory = Memory()
        if self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)):
            raise RuntimeError("deaths: NVML does not tell how much memory is used")
        return memory.used


def seconds_until(condition, limit):
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > limit:
            return float("inf")
        time.sleep(0.002)
    return time.monotonic() - begin


def kill_in_copy(command, device, after, word):
    """Seconds from the kill until the device's memory is what it was before."""
    before = device.used()
    program = subprocess.Popen([*command, "copy", *word], stdout=subprocess.PIPE, text=True)
    said = program.stdout.readline().split()
    if said[:1] != ["copying"]:
        raise RuntimeError(f"deaths: {' '.join(said) or 'the copying program said nothing'}")
    time.sleep(after)
    held = device.used() - before
    os.kill(int(said[1]), signal.SIGKILL)
    took = seconds_until(lambda: device.used() <= before, 20)
    program.wait(timeout=30)
    return took, held


def measure(bench):
    """With a node that serves one steady program all the time: guests are killed while they copy 1 GiB."""
    binary = bench.compile("tenant")
    device = Device()
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/node.sock"
        node = subprocess.Popen([*bench.serve, "--listen", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if seconds_until(lambda: os.path.exists(f"{folder}/node.sock"), 20) == float("inf"):
                raise RuntimeError("deaths: the node does not start")
            remote = [bench.aviary_run[0], "run", "--server", address, *bench.aviary_run[2:], binary]
            steady = subprocess.Popen([*remote, "steady"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if steady.stdout.readline() != "steady\n":
                raise RuntimeError("deaths: the steady program does not run")
            for direction, kind in KINDS:
                results = [kill_in_copy(remote, device, after, (direction, kind)) for after in (0.05, 0.13, 0.31)]
                slowest = max(took for took, _ in results)
                print(f"killed while copying {direction}, {kind}: {min(h for _, h in results) >> 20} MiB held, "
                      f"returned within {slowest:.3f} s {'' if slowest <= WITHIN_SECONDS else 'TOO LATE'}", flush=True)
                bench.figures[f"cuda.deaths.{direction}_{kind}.seconds"] = slowest
            said, _ = steady.communicate(timeout=60)
            print(f"another program meanwhile: {said.strip()}", flush=True)
            words = said.split()
            bench.figures["cuda.deaths.others_wrong"] = int(words[2]) if steady.returncode == 0 else 1
            bench.figures["cuda.deaths.others_slowest_round_s"] = float(words[4])
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(timeout=30)
