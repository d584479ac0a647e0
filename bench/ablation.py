"""What each term of scheduling and waiting is worth: the same figures with all of them, and without one at a time.

    ./x bench ablation [--json FILE]                     two CPUs, testapi's synthetic accelerator (root)
    python3 bench/ablation.py --cuda [--json FILE]       an NVIDIA device, kernels of apis/cuda/tests/units/spend.c (root)

The terms are those of crates/ring/src/ablation.rs; the command and the APIs are built with the choice into target/ablation.
A term moves a figure if every figure without it is outside of what all runs with all terms gave, by more than 2% of it.
Terms that work together are left out at once: `--term shared-cpu,predictor`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]
TREE = ROOT / "target/ablation"
AVIARY = TREE / "release/aviary"
SOURCE = ROOT / "crates/ring/src/ablation.rs"
# Runs with all terms, for the spread.
WHOLE = 4
# A change that is less is none.
NOTICED = 0.02
# Seconds of one measurement.
SECONDS = 4


def terms():
    """The names that AVIARY_WITHOUT knows."""
    return re.findall(r'\("([a-z-]+)", Term::', SOURCE.read_text(encoding="utf-8"))


def build(apis):
    """The command and these APIs, with the choice of terms, into target/ablation."""
    flags = {**os.environ, "RUSTFLAGS": "--cfg aviary_ablation"}
    cargo = ["cargo", "build", "--release", "--quiet", "-p", "aviary"]
    subprocess.run(cargo, cwd=ROOT, env={**flags, "CARGO_TARGET_DIR": str(TREE)}, check=True)
    for api in apis:
        headers = ["-I", "target/cache/cuda-headers"] if api == "cuda" else []
        command = [AVIARY, "spec", "build", *headers, "-o", TREE / "aviary", f"apis/{api}/{api}.lapis"]
        subprocess.run(command, cwd=ROOT, env=flags, check=True)


def environment(term):
    return {**os.environ, "AVIARY": str(AVIARY), "AVIARY_WITHOUT": term or ""}


# ---- The figures of one configuration, in a process of its own ------------------------------------


def with_testapi():
    """Times are better if low, ratios of fairness and utilization if high."""
    import fair
    import measure
    from harness.accelerator import Load, Nuisance, Stage, Tenant, min_max_ratio

    calls = measure.timed_calls(True)
    figures = {"call_ns": calls["sync_ns"], "stream_ns": calls["stream_ns"]}
    with Stage() as stage:
        for name, load in fair.LOADS.items():
            tenants = [Tenant(weight, load) for weight in (1, 2, 3)]
            outcome = stage.run("fair", tenants, SECONDS)
            figures[f"{name}.min_max"], figures[f"{name}.busy"] = min_max_ratio([outcome]), outcome.utilization()
        alone = stage.run("fair", [Tenant(1, fair.INTERACTIVE)], SECONDS)
        figures["alone.busy"] = alone.utilization()
        for kernel in (21, 1605):
            others = Load(kernel, batch=max(1, 10_000 // kernel))
            outcome = stage.run("fair", [Tenant(1, fair.INTERACTIVE), Tenant(1, others)], SECONDS)
            figures[f"beside_{kernel}us.share"] = outcome.busy(0) / (outcome.end - outcome.begin)
        pause = 7500
        outcome = stage.run("fair", [Tenant(1, fair.BATCH), Tenant(1, Load(500, batch=10, pause_us=pause))], SECONDS)
        figures["beside_a_sleeper.busy"] = outcome.utilization()
        flooded = [Tenant(1, Nuisance("calls")), *[Tenant(1, fair.PEACEFUL)] * 7]
        outcome = stage.run("fair", flooded, SECONDS, patience=2.0, top=("sessions_per_user = 64",))
        shares = [outcome.busy(i) / (outcome.end - outcome.begin) for i in range(1, 8)]
        figures["flooded.worst"], figures["flooded.busy"] = min(shares), outcome.utilization()
        burned = [*[Tenant(1, Nuisance("burn"))] * 4, *[Tenant(1, fair.INTERACTIVE)] * 2, Tenant(1, fair.BATCH)]
        outcome = stage.run("fair", burned, SECONDS, patience=2.0)
        shares = [outcome.busy(i) / (outcome.end - outcome.begin) for i in range(4, 7)]
        figures["burned.worst"], figures["burned.busy"] = min(shares), outcome.utilization()
    return figures


def with_cuda():
    """Shares of the device's time, and what programs alone get of what they get natively."""
    import cuda_fair

    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        tenants = cuda_fair.Fair(AVIARY, [str(TREE / "aviary")], scratch, 1.5)
        known = json.loads(os.environ.get("AVIARY_ABLATION_NATIVE", "{}"))
        tenants.steps_per_us = known.get("steps_per_us")
        tenants.costs = {float(us): cost for us, cost in known.get("costs", {}).items()}
        # Those who wait for each kernel also where nothing is scheduled: there only the waits differ.
        loads = {cuda_fair.Load(20): ("none", "fair"), cuda_fair.Load(5000): ("none", "fair"), cuda_fair.Load(200): ("fair",),
                 cuda_fair.Load(20, 50): ("fair",)}
        for load, places in loads.items():
            for where in places:
                rate = tenants.rates(where, (1,), [tenants.command(load)], cuda_fair.ATTACH)[0]
                found[f"alone.{load}.{where}"] = rate * tenants.cost(load)
        for name in ("one_at_a_time_1_3", "mixed_3_1", "mixed_batches_1_1"):
            pairs = dict(cuda_fair.EXPERIMENTS)[name]
            weights, chosen = [weight for weight, _ in pairs], [load for _, load in pairs]
            rates = tenants.rates("fair", weights, [tenants.command(load) for load in chosen], cuda_fair.ATTACH)
            shares = [rate * tenants.cost(load) for rate, load in zip(rates, chosen)]
            normalized = [share / weight for share, weight in zip(shares, weights)]
            found[f"{name}.min_max"], found[f"{name}.busy"] = min(normalized) / max(normalized), sum(shares)
        native = {"steps_per_us": tenants.steps_per_us, "costs": tenants.costs}
    return found, native


# ---- All configurations ----------------------------------------------------------------------------


def measure_one(term, kind, more=None, cpus=None):
    where = ["taskset", "-c", cpus] if cpus else []
    command = [*where, sys.executable, __file__, "--one", kind]
    done = subprocess.run(command, env=environment(term) | (more or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"ablation: {term or 'all terms'}: {(done.stdout + done.stderr).strip()[-600:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def compared(whole, without):
    """The table: of each figure the mean and the spread with all terms, and the figure without each term, starred where it moves."""
    lines, moved = [], {}
    for name in whole[0]:
        known = [run[name] for run in whole]
        mean, spread = fmean(known), max(known) - min(known)
        changes = []
        for term, runs in without.items():
            values = [run[name] for run in runs]
            change = fmean(values) / mean - 1
            changes.append(change)
            outside = max(values) < min(known) or min(values) > max(known)
            if outside and abs(change) > NOTICED and abs(fmean(values) - mean) > spread:
                moved.setdefault(term, []).append(f"{name} {change:+.1%}")
        lines.append(f"{name:28} {mean:10.4g} +-{spread / mean / 2:5.1%}  " + " ".join(f"{change:+7.1%}" for change in changes))
    return lines, moved


def several(names):
    """Terms that are left out at once, as AVIARY_WITHOUT takes them."""
    unknown = set(names.split(",")) - set(terms())
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no term {', '.join(sorted(unknown))}: choose from {', '.join(terms())}")
    return names


def order_of(chosen, rounds):
    """All terms (None) before, between and after the others: a machine that slows down is seen in the spread."""
    step = max(1, len(chosen) // (WHOLE - 1)) if rounds == 1 else len(chosen)
    order = [None]
    for _ in range(rounds):
        for number, term in enumerate(chosen, 1):
            order += [term, None] if number % step == 0 or number == len(chosen) else [term]
    return order


def main():
    parser = argparse.ArgumentParser(prog="ablation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="on an NVIDIA device")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    parser.add_argument("--term", action="append", default=[], type=several, metavar="NAME[,NAME...]",
                        help="only this one, or these at once (repeatable)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="measure each N times (1)")
    parser.add_argument("--built", action="store_true", help="target/ablation is there already")
    parser.add_argument("--cpus", metavar="LIST", help="the CPUs to measure on, as taskset's")
    parser.add_argument("--one", choices=("testapi", "cuda"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(with_testapi() if arguments.one == "testapi" else with_cuda()))
        return 0
    kind = "cuda" if arguments.cuda else "testapi"
    if not arguments.built:
        build([kind])
    whole, without, native = [], {}, {}
    order = order_of(arguments.term or terms(), arguments.rounds)
    for term in order:
        figures = measure_one(term, kind, native, arguments.cpus)
        if figures is None:
            continue
        if kind == "cuda":
            figures, costs = figures
            native = {"AVIARY_ABLATION_NATIVE": json.dumps(costs)}
        print(f"{term or 'all terms':20} " + " ".join(f"{name}={value:.4g}" for name, value in figures.items()), flush=True)
        if term:
            without.setdefault(term, []).append(figures)
        else:
            whole.append(figures)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"whole": whole, "without": without}, indent=1) + "\n", encoding="utf-8")
    if not whole:
        return 1
    lines, moved = compared(whole, without)
    print(f"\n{'':28} {'all terms':>10}  spread  " + " ".join(f"{term[:7]:>7}" for term in without))
    print("\n".join(lines))
    for term in without:
        print(f"without {term:18} {', '.join(moved.get(term, ['moves nothing']))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
