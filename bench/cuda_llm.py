#!/usr/bin/env python3
"""Servers of language models (vLLM, llama.cpp or JAX, unmodified) that share a card which holds one of them, asked in turn.

  bench/cuda_llm.py [--engine vllm|llama|jax] [--servers N] [--gib GIB] [--memory GIB] [--rounds N] [--layers N] [--json FILE]

Each server takes --gib of a device of which the node shares out --memory. Their tokens must be those of a server alone, natively.
Printed per request: seconds to the first token after the server's memory was out, and of a second request at once, when it is in.
Weights are random; the model is like Llama 3 8B with --layers layers. The Python that runs this needs vLLM, or llama-cpp-python and
gguf, or JAX.
It reads and changes no setting of a card.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "cuda"))

from llm_serving import SHAPE  # noqa: E402

from harness.node import running  # noqa: E402
from harness.process import AVIARY, Wrong  # noqa: E402

PROGRAMS = Path(__file__).parent / "cuda"
SERVERS = {"vllm": PROGRAMS / "llm_server.py", "llama": PROGRAMS / "llama_server.py", "jax": PROGRAMS / "jax_server.py"}
# Two sessions are on the host at a time while they exchange their places.
HOST_GIB_BEYOND = 4


def model(arguments, folder):
    layers = arguments.layers
    if arguments.engine == "llama":
        subprocess.run([sys.executable, SERVERS["llama"], "--make", folder, str(layers)], check=True)
    config = dict(SHAPE, architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=layers, max_position_embeddings=4096,
                  rms_norm_eps=1e-5, hidden_act="silu", rope_theta=500000.0, torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2,
                  tie_word_embeddings=False, initializer_range=0.02)
    (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")


class Server:
    """One that takes --gib of a device of so many GiB."""

    def __init__(self, prefix, arguments, folder, device_gib, errors):
        command = [*prefix, sys.executable, SERVERS[arguments.engine], folder, str(arguments.gib / device_gib), str(arguments.gib)]
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.ready = self.heard()["ready"]

    def heard(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise Wrong(f"a server ended with status {self.process.wait()}")

    def ask(self, seed):
        print(json.dumps({"seed": seed}), file=self.process.stdin, flush=True)
        return self.heard()

    def end(self):
        self.process.stdin.close()
        if self.process.wait(timeout=120):
            raise Wrong(f"a server ended with status {self.process.returncode}")


def total_gib():
    asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) / 1024


def alone(arguments, folder, errors):
    """Answers by seed, and the seconds that a start takes, natively."""
    server = Server([], arguments, folder, total_gib(), errors)
    answers = {seed: server.ask(seed) for seed in range(1, arguments.servers + 1)}
    server.end()
    return answers, server.ready


def in_turn(arguments, folder, errors, expected):
    rows = []
    host = (arguments.servers + 1) * arguments.gib + HOST_GIB_BEYOND
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f'parked_memory = "{arguments.host or host}G"\n'
                     f'[devices."*"]\nmemory = "{arguments.memory}G"\noversubscribe = {2.0 * arguments.servers}\n')
        config.flush()
        with running({}, "--config", config.name, "--log-level", arguments.log_level) as node:
            prefix = [AVIARY, "run", "--server", node.address, "--"]
            try:
                servers = []
                for _ in range(arguments.servers):
                    servers.append(Server(prefix, arguments, folder, arguments.memory, errors))
                    print(f"server {len(servers)}: ready after {servers[-1].ready:.1f} s", flush=True)
                for turn in range(arguments.rounds):
                    for seed, server in enumerate(servers, 1):
                        begun = time.monotonic()
                        swapped, resident = server.ask(seed), server.ask(seed)
                        if {swapped["digest"], resident["digest"]} != {expected[seed]["digest"]}:
                            raise Wrong(f"server {seed}, round {turn}: {swapped}, {resident} instead of {expected[seed]}")
                        rows.append((swapped["first_s"], resident["first_s"], swapped["batch_s"], resident["batch_s"]))
                        print(f"server {seed}: first token after {rows[-1][0]:.3f} s, then {rows[-1][1]:.3f}; batch "
                              f"{rows[-1][2]:.3f} and {rows[-1][3]:.3f} s; all {time.monotonic() - begun:.2f} s", flush=True)
                for server in servers:
                    server.end()
            finally:
                print(node.log.read_text(encoding="utf-8")[-200_000:], file=errors, flush=True)
    return rows, [server.ready for server in servers]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=SERVERS, default="vllm")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--gib", type=int, default=30, help="memory of each server")
    parser.add_argument("--memory", type=int, default=50, help="memory of the device that is shared out")
    parser.add_argument("--host", type=int, help="GiB of host memory for what is out; usually room for all servers and one more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--log-level", default="info", help="of the node")
    parser.add_argument("--log", metavar="FILE", default=os.devnull, help="what the servers and the node write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aviary-cuda-llm-") as folder, open(arguments.log, "w", encoding="utf-8") as errors:
        model(arguments, folder)
        expected, native = alone(arguments, folder, errors)
        first = statistics.median(answer["first_s"] for answer in expected.values())
        print(f"natively, alone: ready after {native:.1f} s, first token after {first:.3f} s", flush=True)
        rows, ready = in_turn(arguments, folder, errors, expected)
    columns = ("first_out_s", "first_in_s", "batch_out_s", "batch_in_s")
    figures = {f"cuda_llm.{name}": [row[at] for row in rows] for at, name in enumerate(columns)}
    figures |= {"cuda_llm.native": expected, "cuda_llm.native_ready_s": native, "cuda_llm.ready_s": ready,
                "cuda_llm.shape": {name: value for name, value in vars(arguments).items() if name not in ("json", "log")}}
    medians = [statistics.median(row[at] for row in rows) for at in range(4)]
    print(f"medians: first token {medians[0]:.3f} s after a swap, {medians[1]:.3f} s when resident, natively {first:.3f} s")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
