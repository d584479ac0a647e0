#!/usr/bin/env python3
"""CUDA through Aviary beside CUDA itself, in one run on a machine with an NVIDIA device.

First what programs print is compared, then calls, copies and steps of models are timed, native and through Aviary in turns.
Needs nvcc and, for the frameworks' programs, a Python that has them.
"""

import argparse
import difflib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import cuda_deaths  # noqa: E402
import cuda_fair  # noqa: E402
import cuda_net  # noqa: E402

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "cuda/programs"
DRIVER_PROGRAMS = HERE.parent / "apis/cuda/tests/driver"
# Figures that are better when larger.
BANDWIDTH = ("pinned_", "pageable_")
MODELS = ("tiny_mlp", "resnet50", "gpt2", "llama")


def is_here():
    """Whether this machine has an NVIDIA device and a compiler for it."""
    return bool(shutil.which("nvcc")) and Path("/dev/nvidiactl").exists()


class Bench:
    def __init__(self, aviary, api_dirs, scratch, models=MODELS, rounds=3, seconds=8.0, experiments=(), settings=()):
        folders = [word for folder in api_dirs for word in ("--api-dir", folder)]
        self.serve = [aviary, "serve", *folders]
        self.aviary_run = [aviary, "run", *folders, "--api", "cuda", "--api", "nvml", "--"]
        self.aviary, self.api_dirs = aviary, api_dirs
        self.scratch = Path(scratch)
        self.models, self.rounds, self.seconds = models, rounds, seconds
        self.experiments, self.settings = experiments, settings
        self.figures = {}

    def run(self, command, remoted, timeout=150, more=()):
        """Output, seconds and errors; None instead of the output if it failed. `more`: of the environment."""
        environment = dict(os.environ, TRITON_CACHE_DIR=str(self.scratch / "triton"),
                           TORCHINDUCTOR_CACHE_DIR=str(self.scratch / "inductor"), **dict(more))
        for folder in ("triton", "inductor"):
            shutil.rmtree(self.scratch / folder, ignore_errors=True)
        begin = time.monotonic()
        try:
            done = subprocess.run((self.aviary_run if remoted else []) + command, capture_output=True, text=True,
                                  timeout=timeout, env=environment, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - begin, "took too long"
        return (done.stdout if done.returncode == 0 else None), time.monotonic() - begin, done.stderr

    def compile(self, name):
        binary = self.scratch / name
        subprocess.run(["nvcc", "-O2", "-arch=native", "-o", binary, HERE / f"cuda/{name}.cu", "-lcuda"], check=True)
        return str(binary)

    def put(self, name, native, aviary, less_is_better=True):
        ratio = aviary / native if less_is_better else native / aviary
        self.figures |= {f"cuda.{name}.native": native, f"cuda.{name}.aviary": aviary, f"cuda.{name}.ratio": ratio}
        print(f"{name:32} {native:12.4g} {aviary:12.4g} {ratio:8.3f}", flush=True)

    def compare(self, name, command):
        native, native_seconds, native_errors = self.run(command, False)
        if native is None:
            print(f"{name:32} does not run natively: {native_errors.strip().splitlines()[-1:]}", flush=True)
            return
        remoted, seconds, errors = self.run(command, True)
        same = native == remoted
        self.figures["cuda.different"] = self.figures.get("cuda.different", 0) + (not same)
        self.figures |= {f"cuda.{name}.seconds_native": native_seconds, f"cuda.{name}.seconds_aviary": seconds}
        print(f"{name:32} {native_seconds:12.4g} {seconds:12.4g} {'equal' if same else 'DIFFERENT'}", flush=True)
        if not same:
            print("\n".join(errors.strip().splitlines()[-6:] + (remoted or "").splitlines()[-6:]), flush=True)

    def features(self):
        self.compare("features", [self.compile("features")])

    def programs(self):
        self.features()
        for program in sorted(PROGRAMS.glob("*.py")):
            self.compare(program.stem, [sys.executable, str(program)])

    def driver(self):
        """The driver API's own tests. Where one crashes natively, what it said until then counts."""
        nvcc = Path(shutil.which("nvcc")).resolve().parents[1]
        for source in sorted(DRIVER_PROGRAMS.glob("*.c")):
            binary = self.scratch / source.stem
            subprocess.run(["nvcc", "-O1", "-Xcompiler", "-pthread", "-o", binary, source, f"-L{nvcc}/lib64/stubs", "-lcuda"],
                           check=True)
            try:
                native, remoted = (subprocess.run([*command, binary], capture_output=True, text=True, errors="replace",
                                                  timeout=60, stdin=subprocess.DEVNULL, check=False)
                                   for command in ([], self.aviary_run))
            except subprocess.TimeoutExpired as late:
                self.figures["cuda.different"] = self.figures.get("cuda.different", 0) + 1
                print(f"driver/{source.stem:25} DIFFERENT: {'Aviary' if len(late.cmd) > 1 else 'natively it'} takes longer than 60 s", flush=True)
                continue
            crashed = native.returncode < 0
            same = (native.stdout, native.returncode) == (remoted.stdout, remoted.returncode)
            if crashed:
                same = remoted.returncode == 0 and remoted.stdout.startswith(native.stdout)
            self.figures["cuda.different"] = self.figures.get("cuda.different", 0) + (not same)
            note = f" (natively it ends with signal {-native.returncode})" if crashed else ""
            print(f"driver/{source.stem:25} {'equal' if same else 'DIFFERENT'}{note}", flush=True)
            if not same:
                lines = difflib.unified_diff(native.stdout.splitlines(), remoted.stdout.splitlines(), "native", "aviary", "", "", 0, "")
                print("\n".join([*list(lines)[2:14], *remoted.stderr.strip().splitlines()[-6:]]), flush=True)

    def deaths(self):
        cuda_deaths.measure(self)

    def net(self):
        cuda_net.run(self)

    def micro(self, rounds=3):
        binary = self.compile("micro")
        results = ({}, {})
        for _ in range(rounds):
            for remoted in (False, True):
                output, _, errors = self.run([binary], remoted)
                if output is None:
                    raise RuntimeError(f"micro: {errors.strip()[-300:]}")
                for line in output.splitlines():
                    name, value, _ = line.split()
                    results[remoted].setdefault(name, []).append(float(value))
        for name, native in results[False].items():
            self.put(name, statistics.median(native), statistics.median(results[True][name]),
                     not name.startswith(BANDWIDTH))

    def steps(self):
        """Each model by itself, native and remoted in turns: a shared machine is not as fast in one minute as in the next."""
        rounds = self.rounds
        for model in self.models:
            results, counts = ({}, {}), {}
            for number in range(rounds):
                for remoted in (False, True):
                    # A measurement that counts looks at the node twice in each measurement: the last round only.
                    counting = {"COUNT_WITH": self.aviary_run[0]} if remoted and number == rounds - 1 else {}
                    for name, milliseconds, _, *counted in self.step_lines(model, remoted, counting):
                        results[remoted].setdefault(name, []).append(float(milliseconds))
                        counts[name] = [float(word) for word in counted]
            for name, native in results[False].items():
                self.put(f"step.{name}", min(native), min(results[True][name]))
                self.put_counts(name, counts[name])
                print(f"{'':6}native {native}, Aviary {results[True][name]}", flush=True)

    def step_lines(self, model, remoted, counting):
        output, _, errors = self.run([sys.executable, str(HERE / "cuda/steps.py"), model], remoted, 200, counting)
        if output is None:
            raise RuntimeError(f"steps: {errors.strip()[-300:]}")
        return [line.split() for line in output.splitlines()]

    def put_counts(self, name, counted):
        words = ("waited_for", "not_waited_for", "bytes_sent", "bytes_received")
        self.figures |= {f"cuda.step.{name}.{word}": value for word, value in zip(words, counted)}
        print(f"{'':6}a step: " + ", ".join(f"{v:.0f} {w.replace('_', ' ')}" for w, v in zip(words, counted)), flush=True)

    def start(self, rounds=3):
        script = "import torch; torch.ones(4, device='cuda').add_(1); torch.cuda.synchronize()"
        times = ([], [])
        for _ in range(rounds):
            for remoted in (False, True):
                times[remoted].append(self.run([sys.executable, "-c", script], remoted)[1])
        self.put("start_s", min(times[False]), min(times[True]))

    def together(self, processes=8):
        """So many processes at once: steps per second of all of them."""
        names = ["tiny_mlp", "resnet50"]
        sums = ({}, {})
        for remoted in (False, True):
            command = (self.aviary_run if remoted else []) + [sys.executable, str(HERE / "cuda/steps.py"), *names]
            running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                       for _ in range(processes)]
            for process in running:
                for line in process.communicate(timeout=250)[0].splitlines():
                    name, milliseconds, *_ = line.split()
                    sums[remoted][name] = sums[remoted].get(name, 0) + 1000 / float(milliseconds)
        for name, native in sums[False].items():
            self.put(f"together.{name}", native, sums[True].get(name, float("nan")), False)

    def fair(self):
        self.share(lambda fair: cuda_fair.kernels(fair, self.experiments))

    def fair_models(self):
        self.share(cuda_fair.models)

    def share(self, part):
        with tempfile.TemporaryDirectory(dir=self.scratch) as scratch:
            fair = cuda_fair.Fair(self.aviary, self.api_dirs, scratch, self.seconds, settings=self.settings)
            failed = part(fair)
            self.figures |= fair.figures
        if failed:
            raise RuntimeError(f"{len(failed)} of its experiments failed")

    def memory_used(self):
        """MiB in use on the device: after everything nothing may be left."""
        output = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                capture_output=True, text=True, check=False).stdout
        return sum(int(line) for line in output.split() if line.isdigit())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = HERE.parent
    parser.add_argument("--aviary", default=str(root / "target/release/aviary"))
    parser.add_argument("--api-dir", action="append", default=[])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--model", action="append", choices=MODELS, help="steps: only this model (repeatable)")
    parser.add_argument("--rounds", type=int, default=3, help="steps: processes a side, of which the fastest counts")
    parser.add_argument("--seconds", type=float, default=8.0, help="fair: how long tenants share the device at a time")
    parser.add_argument("--experiment", action="append", default=[], choices=[name for name, _ in cuda_fair.EXPERIMENTS],
                        help="fair: only this one (repeatable)")
    parser.add_argument("--setting", action="append", default=[], metavar="LINE", help="fair: of the device, as in node.toml (repeatable)")
    parser.add_argument("parts", nargs="*", default=["programs", "micro", "start", "steps", "together"])
    arguments = parser.parse_args()
    if not is_here():
        sys.exit("bench cuda: needs an NVIDIA device and nvcc")
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(arguments.aviary, arguments.api_dir, scratch, arguments.model or MODELS, arguments.rounds, arguments.seconds,
                      arguments.experiment, arguments.setting)
        before = bench.memory_used()
        print(f"{'':32} {'native':>12} {'aviary':>12} {'ratio':>8}")
        for part in arguments.parts:
            try:
                getattr(bench, part)()
            except (RuntimeError, subprocess.SubprocessError) as error:
                print(f"{part}: {error}", flush=True)
                failed = True
            # A run that is cut short keeps what it has.
            bench.figures["cuda.memory_left_MiB"] = max(0, bench.memory_used() - before)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(bench.figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(failed or bool(bench.figures.get("cuda.different")))


if __name__ == "__main__":
    main()
