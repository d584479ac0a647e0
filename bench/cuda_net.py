"""CUDA on a node that is reached over TLS on loopback: calls, checked copies of random data without compression, and steps of models, beside
CUDA itself in turns; and the TCP ping-pong of the same run."""

import contextlib
import os
import subprocess
import tempfile
import time

import measure
from netcalls import ended, free_port

# Seconds for the node to begin.
PATIENCE = 20
MODELS = ("gpt2", "resnet50")


@contextlib.contextmanager
def remote(bench):
    """The bench's programs run over TLS meanwhile."""
    with tempfile.TemporaryDirectory() as keys, contextlib.ExitStack() as stack:
        subprocess.run([bench.aviary, "tls", "init", keys, "--tenant", "bench"], check=True, stdout=subprocess.DEVNULL)
        address, log = f"127.0.0.1:{free_port()}", stack.enter_context(tempfile.TemporaryFile("w+"))
        command = [*bench.serve, "--sandbox", "off", "--listen", address, "--tls-dir", f"{keys}/node"]
        node = stack.enter_context(ended(subprocess.Popen(command, stderr=log)))
        until = time.monotonic() + PATIENCE
        while "listening" not in os.pread(log.fileno(), 1 << 16, 0).decode():
            if node.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"net: the node does not listen: {os.pread(log.fileno(), 500, 0).decode()}")
            time.sleep(0.1)
        local, at = bench.aviary_run, bench.aviary_run.index("--")
        bench.aviary_run = [*local[:at], "--server", address, "--tls-dir", f"{keys}/tenant-bench", "--no-compression", *local[at:]]
        try:
            yield
        finally:
            bench.aviary_run = local


def lines(bench, command, remoted):
    """`name value unit` lines of a program."""
    output, _, errors = bench.run(command, remoted, 200)
    if output is None:
        raise RuntimeError(f"net: {errors.strip()[-300:]}")
    return {name: float(value) for name, value, _ in (line.split() for line in output.splitlines())}


def compared(bench, program):
    binary = bench.compile(program)
    native, remoted = (lines(bench, [binary], remoted) for remoted in (False, True))
    for key, value in native.items():
        bench.put(f"net.{key}", value, remoted[key], not key.startswith(("pinned_", "pageable_")))


def steps(bench, model):
    results = ({}, {})
    for _ in range(bench.rounds):
        for remoted in (False, True):
            for name, milliseconds, *_ in bench.step_lines(model, remoted, {}):
                results[remoted].setdefault(name, []).append(float(milliseconds))
    for name, native in results[False].items():
        bench.put(f"net.step.{name}", min(native), min(results[True][name]))


def run(bench):
    with remote(bench):
        tcp = measure.measured([measure.compile_c("tcp"), "20000"])["tcp_us"]
        bench.figures["cuda.net.tcp_us"] = tcp
        print(f"{'net.tcp_us':32} {tcp:12.4g}", flush=True)
        compared(bench, "copies")
        compared(bench, "micro")
        for model in MODELS:
            steps(bench, model)
