"""Tenants that share an NVIDIA device by their weights, beside the same programs natively and on a node that schedules nothing.

Every program says how much it did. What a piece of work costs the device is what one takes natively when nobody else is there,
one behind the other; so `share` is the part of the device's time that a program's work is worth, and the sum of all is 1 if
nothing is lost. Tenants are users, so this needs root.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPEND = HERE.parent / "apis/cuda/tests/units/spend.c"
# Used by no user of any machine that we know.
FIRST_USER = 60001
# How long programs have to attach before the measured time, in seconds: small ones, and PyTorch.
ATTACH, ATTACH_TORCH = 2.0, 22.0


@dataclass(frozen=True)
class Load:
    """Kernels of so many microseconds, so many of them before each wait."""

    us: float
    batch: int = 1

    def __str__(self):
        return f"{self.us:g}us" + (f"x{self.batch}" if self.batch > 1 else "")


# Name, and what each tenant does with which weight.
EXPERIMENTS = [
    ("one_at_a_time_1_1", [(1, Load(200)), (1, Load(200))]),
    ("one_at_a_time_1_3", [(1, Load(200)), (3, Load(200))]),
    ("one_at_a_time_1_2_3", [(1, Load(200)), (2, Load(200)), (3, Load(200))]),
    ("short_one_at_a_time_1_3", [(1, Load(20)), (3, Load(20))]),
    ("batches_20us_1_3", [(1, Load(20, 50)), (3, Load(20, 50))]),
    ("batches_500us_1_2_3", [(1, Load(500, 50)), (2, Load(500, 50)), (3, Load(500, 50))]),
    ("long_1_1", [(1, Load(5000)), (1, Load(5000))]),
    ("mixed_1_1", [(1, Load(50)), (1, Load(5000))]),
    ("mixed_batches_1_1", [(1, Load(50, 50)), (1, Load(5000, 50))]),
    ("mixed_3_1", [(3, Load(50)), (1, Load(5000))]),
]
QUICK = ("one_at_a_time_1_3", "mixed_batches_1_1")
# The time that a program alone loses on a node that schedules.
ALONE = [Load(20), Load(200), Load(20, 50), Load(5000)]
MODELS = ("resnet50", "gpt2")


class Fair:
    """A folder that all tenants can read, and the programs in it. `driver`: a folder with another driver than the machine's."""

    def __init__(self, aviary, api_dirs, scratch, seconds, driver=None, settings=()):
        if os.geteuid() != 0:
            raise RuntimeError("fair: tenants are users of their own, which only root can start")
        self.aviary, self.seconds, self.driver, self.settings = Path(aviary).resolve(), seconds, driver, settings
        self.api_dirs = api_dirs
        self.folder = Path(scratch) / "fair"
        self.folder.mkdir()
        for folder in (Path(scratch).parent, Path(scratch), self.folder):
            if folder != Path(tempfile.gettempdir()):
                folder.chmod(0o755)
        self.spend = self.folder / "spend"
        headers = ["-I", str(HERE.parent / "target/cache/cuda-headers")] if driver else self.toolkit()
        where = ["-L", driver] if driver else []
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-o", self.spend, SPEND, *headers, *where, "-lcuda"], check=True)
        self.guest = self.folder / "guest"
        self.guest.mkdir()
        shutil.copy(self.guest_library(), self.guest)
        self.figures, self.costs, self.alone = {}, {}, {}
        self.nodes = 0
        self.steps_per_us = None

    @staticmethod
    def toolkit():
        root = Path(shutil.which("nvcc")).resolve().parents[1]
        return ["-I", str(root / "include"), "-L", str(root / "lib64/stubs")]

    def guest_library(self):
        folders = [*self.api_dirs, str(HERE.parent / "target/aviary")]
        found = [path for folder in folders if (path := Path(folder) / "cuda/libcuda.so.1").exists()]
        if not found:
            raise RuntimeError(f"fair: no cuda/libcuda.so.1 in {', '.join(folders)}")
        return found[0]

    def native_environment(self):
        return {"LD_LIBRARY_PATH": self.driver} if self.driver else {}

    @contextlib.contextmanager
    def node(self, scheduler, weights=(1,)):
        """The environment of its guests."""
        self.nodes += 1
        socket = self.folder / f"node{self.nodes}.sock"
        lines = [f'listen = "unix:{socket}"', 'mode = "666"']
        for i, weight in enumerate(weights):
            # For `priority`: the first goes first.
            lines += [f"[tenants.t{i}]", f"users = [{FIRST_USER + i}]", f"weight = {weight}", f"priority = {len(weights) - i}"]
        if scheduler:
            lines += ['[devices."*"]', f'scheduler = "{scheduler}"', *self.settings]
        config = self.folder / "node.toml"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        folders = [word for folder in self.api_dirs for word in ("--api-dir", folder)]
        log = open(self.folder / "node.log", "w", encoding="utf-8")
        process = subprocess.Popen([self.aviary, "serve", "--config", config, "--pass-environment=AVIARY_WITHOUT", *folders], stdout=log, stderr=log,
                                   env={**os.environ, **self.native_environment()})
        try:
            deadline = time.monotonic() + 20
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"fair: the node does not start: {(self.folder / 'node.log').read_text()[-500:]}")
                time.sleep(0.02)
            yield {"LD_LIBRARY_PATH": str(self.guest), "AVIARY_SERVER": f"unix:{socket}"}
        finally:
            process.terminate()
            process.wait()
            log.close()

    def place(self, where, weights=(1,)):
        """`native`, `none` or the name of a scheduler."""
        if where == "native":
            return contextlib.nullcontext(self.native_environment())
        return self.node(None if where == "none" else where, weights)

    def start(self, number, command, environment):
        user = ["setpriv", f"--reuid={FIRST_USER + number}", f"--regid={FIRST_USER + number}", "--clear-groups"]
        home = self.folder / f"home{number}"
        home.mkdir(exist_ok=True)
        home.chmod(0o777)
        settings = {**os.environ, **environment, "HOME": str(home), "XDG_CACHE_HOME": str(home), "USER": f"t{number}"}
        return subprocess.Popen([*user, *map(str, command)], env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                cwd=self.folder, start_new_session=True)

    def rates(self, where, weights, commands, attach):
        """Pieces of work per second of each program. `commands`: given the begin and the end of the measured time."""
        with self.place(where, weights) as environment:
            begin = time.monotonic() + attach
            end = begin + self.seconds
            running = [self.start(i, command(begin, end), environment) for i, command in enumerate(commands)]
            rates = []
            try:
                for program in running:
                    output, errors = program.communicate(timeout=attach + self.seconds + 120)
                    words = output.split()
                    if program.returncode or len(words) < 2:
                        raise RuntimeError(f"fair: {where}: status {program.returncode}: {(output + errors).strip()[-300:]}")
                    if not float(words[-1]):
                        raise RuntimeError(f"fair: {where}: a program did nothing in the measured time; did it start in {attach:.0f} s?")
                    rates.append(float(words[-2]) / float(words[-1]))
            finally:
                for program in running:
                    if program.poll() is None:
                        program.kill()
        return rates

    # ---- Kernels ------------------------------------------------------------------------------

    def command(self, load):
        return lambda begin, end: [self.spend, self.steps(load), load.batch, f"{begin:.6f}", f"{end:.6f}"]

    def launches(self, steps, batch, seconds):
        """Nanoseconds of one launch among others, natively and alone."""
        done = subprocess.run([self.spend, str(steps), str(batch), str(seconds)], capture_output=True, text=True, check=True,
                              env={**os.environ, **self.native_environment()})
        count, took = done.stdout.split()
        return float(took) / float(count) * 1e9

    def steps(self, load):
        if not self.steps_per_us:
            many, few = 200_000, 100_000
            if self.driver:
                many, few = 2000, 1000
            self.steps_per_us = (many - few) / ((self.launches(many, 20, 0.5) - self.launches(few, 20, 0.5)) / 1000)
        return max(1, round(load.us * self.steps_per_us))

    def cost(self, load):
        """Seconds of the device for one launch: what one takes behind others."""
        if load.us not in self.costs:
            self.costs[load.us] = self.launches(self.steps(load), 100 if load.us < 1000 else 10, min(1.0, self.seconds)) / 1e9
        return self.costs[load.us]

    def alone_rate(self, load):
        if load not in self.alone:
            self.alone[load] = self.rates("native", (1,), [self.command(load)], ATTACH)[0]
        return self.alone[load]

    def put(self, name, value):
        self.figures[f"cuda.fair.{name}"] = value

    def report(self, name, where, weights, shares, of_alone):
        normalized = [share / weight for share, weight in zip(shares, weights)]
        ratio = min(normalized) / max(normalized) if max(normalized) else 0.0
        self.put(f"{name}.{where}.min_max", ratio)
        self.put(f"{name}.{where}.busy", sum(shares))
        self.put(f"{name}.{where}.of_alone", sum(of_alone))
        for number, share in enumerate(shares):
            self.put(f"{name}.{where}.share{number}", share)
        print(f"fair {name:26} {where:7} min/max {ratio:6.3f}  busy {sum(shares):6.3f}  of what they do alone {sum(of_alone):6.3f}  shares "
              + " ".join(f"{share:.3f}" for share in shares), flush=True)

    def experiment(self, name, tenants):
        weights, loads = [weight for weight, _ in tenants], [load for _, load in tenants]
        costs, alone = [self.cost(load) for load in loads], [self.alone_rate(load) for load in loads]
        for where in ("native", "none", "fair"):
            rates = self.rates(where, weights, [self.command(load) for load in loads], ATTACH)
            self.report(name, where, weights, [r * c for r, c in zip(rates, costs)], [r / a for r, a in zip(rates, alone)])

    def lone(self, load):
        native = self.alone_rate(load)
        rates = {where: self.rates(where, (1,), [self.command(load)], ATTACH)[0] for where in ("none", "fair")}
        self.put(f"alone.{load}.none", rates["none"] / native)
        self.put(f"alone.{load}.fair", rates["fair"] / native)
        self.put(f"alone.{load}.fair_of_none", rates["fair"] / rates["none"])
        print(f"fair alone {load!s:20} of native: none {rates['none'] / native:.3f}, fair {rates['fair'] / native:.3f}", flush=True)

    # ---- Steps of models ----------------------------------------------------------------------

    @staticmethod
    def model(name):
        return lambda begin, end: ["env", f"STEPS_BETWEEN={begin:.6f} {end:.6f}", sys.executable, HERE / "cuda/steps.py", name]

    def models(self):
        """The device's time of a step is what it takes natively alone: these keep the device busy all the time."""
        names = list(MODELS)
        commands = [self.model(name) for name in names]
        for command in commands:
            # The first start on a machine reads everything from its disk.
            self.rates("native", (1,), [command], ATTACH_TORCH)
        alone = {where: [self.rates(where, (1,), [command], ATTACH_TORCH)[0] for command in commands] for where in ("native", "none", "fair")}
        for number, name in enumerate(names):
            for where in ("none", "fair"):
                self.put(f"alone.{name}.{where}", alone[where][number] / alone["native"][number])
            print(f"fair alone {name:20} of native: none {alone['none'][number] / alone['native'][number]:.3f}, "
                  f"fair {alone['fair'][number] / alone['native'][number]:.3f}", flush=True)
        for weights in ((1, 1), (1, 3)):
            for where in ("native", "none", "fair"):
                rates = self.rates(where, weights, commands, ATTACH_TORCH)
                shares = [rate / most for rate, most in zip(rates, alone["native"])]
                self.report(f"{'_'.join(names)}_{weights[0]}_{weights[1]}", where, weights, shares, shares)


class Attempts:
    """What fails is told, and the rest is measured."""

    def __init__(self):
        self.failed = []

    def __call__(self, what, *arguments):
        try:
            what(*arguments)
        except (RuntimeError, subprocess.SubprocessError, ValueError, ZeroDivisionError) as error:
            print(f"fair {' '.join(map(str, arguments[:1]))}: {error}", flush=True)
            self.failed.append(str(error))


def kernels(fair, only=None):
    """Prints as it goes; the errors. Three minutes, and 47 times `seconds`, if it is not `only` some of them."""
    attempt = Attempts()
    for load in ALONE[:1] if only else ALONE:
        attempt(fair.lone, load)
    for name, tenants in EXPERIMENTS:
        if not only or name in only:
            attempt(fair.experiment, name, tenants)
    return attempt.failed


def models(fair):
    """Steps of models beside each other. Six and a half minutes, and 14 times `seconds`."""
    attempt = Attempts()
    attempt(fair.models)
    return attempt.failed


def main():
    """A smoke test on a driver that needs no device: `cuda_fair.py DRIVER-DIR [SECONDS]`."""
    with tempfile.TemporaryDirectory() as scratch:
        fair = Fair(HERE.parent / "target/release/aviary", [], scratch, float(sys.argv[2]) if len(sys.argv) > 2 else 2.0,
                    str(Path(sys.argv[1]).resolve()))
        failed = kernels(fair, QUICK)
        print(json.dumps(fair.figures, indent=1))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
