#!/usr/bin/env python3
"""vLLM, unmodified, natively and through `aviary run` in turn: tokens, speed, starts. Then one engine in each of two grants, 1:3.

  bench/cuda_llm_speed.py [--starts N] [--layers N] [--seconds S] [--prompt N] [--new N] [--json FILE]

The model is like Llama 3 8B with --layers layers, its weights random. All tokens must be those of the first native start. It needs a
Python with vLLM, and reads and changes no setting of a card.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cuda_grants import GRANTS, device_time, granted, heard  # noqa: E402
from cuda_llm import model  # noqa: E402

from harness.node import running  # noqa: E402
from harness.process import AVIARY, Wrong  # noqa: E402

PROGRAM = Path(__file__).parent / "cuda/llm_speed.py"
# Of the device's memory, or a grant's.
UTILIZATION = {"native": 0.3, "aviary": 0.3, "grant": 0.85}
PREFIXES = {"native": [], "aviary": [AVIARY, "run", "--"]}
FIGURES = {"first_s": "first token of 1,024, ms", "one": "one sequence, tokens/s", "many": "64 sequences, tokens/s"}


def started(prefix, folder, part, errors, *more):
    command = [*prefix, sys.executable, PROGRAM, folder, str(part), *map(str, more)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=errors)


def one_start(way, folder, errors):
    process = started(PREFIXES[way], folder, UTILIZATION[way], errors)
    found = heard(process) | heard(process)
    if process.wait(timeout=120):
        raise Wrong(f"{way}: status {process.returncode}")
    return found


def in_turn(arguments, folder, errors):
    starts = {way: [] for way in PREFIXES}
    for number in range(arguments.starts):
        for way, rows in starts.items():
            rows.append(one_start(way, folder, errors))
            row = rows[-1]
            print(f"start {number + 1}, {way}: ready after {row['ready']:.1f} s, first token {statistics.median(row['first_s']) * 1e3:.1f} ms, "
                  f"{statistics.median(row['one']):.0f} and {statistics.median(row['many']):.0f} tokens/s", flush=True)
            if row["digest"] != starts["native"][0]["digest"]:
                raise Wrong(f"{way}: other tokens")
    return starts


def in_grants(arguments, folder, errors):
    config = Path(folder) / "node.toml"
    config.write_text('[devices."*"]\nscheduler = "fair"\n', encoding="utf-8")
    begin = Path(folder) / "begin"
    with running({}, "--config", str(config), "--grants", str(Path(folder) / "grants")) as node:
        prefixes = granted(node, folder)
        programs = [started(prefix, folder, UTILIZATION["grant"], errors, arguments.seconds, begin, arguments.prompt, arguments.new) for prefix in prefixes]
        ready = [heard(program) for program in programs]
        begin.touch()
        threading.Event().wait(1)
        before = device_time(node)
        threading.Event().wait(arguments.seconds - 2)
        after = device_time(node)
        work = [heard(program) for program in programs]
        ends = [program.wait(timeout=120) for program in programs]
        if any(ends):
            raise Wrong(f"status {ends}: {node.log.read_text(encoding='utf-8')[-2000:]}")
    return {"ready": ready, "work": work, "device_time": [after[name] - before[name] for name, _, _ in GRANTS]}


def alone(arguments, folder, errors):
    """Seconds a token of one engine that works natively, with nobody beside it."""
    begin = Path(folder) / "alone"
    begin.touch()
    process = started([], folder, UTILIZATION["native"], errors, min(arguments.seconds, 10), begin, arguments.prompt, arguments.new)
    found = heard(process) | heard(process)
    process.wait(timeout=120)
    return found


def print_starts(starts):
    for name, what in FIGURES.items():
        native, aviary = ([statistics.median(row[name]) for row in starts[way]] for way in PREFIXES)
        scale = 1e3 if name == "first_s" else 1
        ratio = statistics.median(native) / statistics.median(aviary)
        print(f"{what}: {statistics.median(native) * scale:.1f} natively ({min(native) * scale:.1f} to {max(native) * scale:.1f}), "
              f"{statistics.median(aviary) * scale:.1f} through Aviary ({min(aviary) * scale:.1f} to {max(aviary) * scale:.1f}): "
              f"{ratio if name == 'first_s' else 1 / ratio:.3f} of native speed", flush=True)


def print_grants(shared, single):
    engines = [(f"{name}, {share}%", work) for (name, _, share), work in zip(GRANTS, shared["work"])]
    for what, work in (*engines, ("natively, alone", single)):
        times = work["token_s"]
        print(f"{what}: {work['tokens']} tokens, {statistics.median(times) * 1e3:.2f} ms a token, p99 {statistics.quantiles(times, n=100)[98] * 1e3:.2f}")
    speeds = [1 / statistics.mean(work["token_s"]) for work in shared["work"]]
    for what, (one, other) in (("device time", shared["device_time"]), ("tokens a second", speeds)):
        print(f"{what}: 1 to {other / max(one, 1e-9):.3f}", flush=True)
    print(f"tokens a second, of what is possible alone: {sum(speeds) * statistics.mean(single['token_s']):.3f}", flush=True)


def keep(file, figures):
    if file:
        Path(file).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5, help="of each way; 0: none")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30, help="for which the engines in grants work; 0: they do not")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of each prompt of the engines in grants; 64: they keep a device half busy")
    parser.add_argument("--new", type=int, default=8, help="tokens that they answer each with")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--log", metavar="FILE", default=os.devnull, help="what the engines write")
    arguments = parser.parse_args()
    arguments.engine = "vllm"
    figures = {"arguments": {name: value for name, value in vars(arguments).items() if name not in ("json", "log")}}
    with tempfile.TemporaryDirectory(prefix="aviary-llm-speed-") as folder, open(arguments.log, "w", encoding="utf-8") as errors:
        os.chmod(folder, 0o755)
        model(arguments, folder)
        if arguments.starts:
            figures["starts"] = in_turn(arguments, folder, errors)
            print_starts(figures["starts"])
            keep(arguments.json, figures)
        if arguments.seconds:
            figures["alone"] = alone(arguments, folder, errors)
            figures["grants"] = in_grants(arguments, folder, errors)
            print_grants(figures["grants"], figures["alone"])
            keep(arguments.json, figures)


if __name__ == "__main__":
    main()
