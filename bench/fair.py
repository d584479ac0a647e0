"""How fairly tenants share one device: FairGV's figures 8 to 11, AvA's figure 13, Optimus' section 6.8.

The device is testapi's synthetic accelerator, whose own log says who had it when; or, as `pocl_...`, this machine's
first processor through OpenCL (pocl_tenants.py says what counts as device time there).
Ratios are against the same load alone on the device, without Aviary, in the same run.
"""

import itertools
import random
from functools import partial
from statistics import fmean, median

from harness.accelerator import Load, Nuisance, Stage, Tenant, min_max_ratio
from pocl_tenants import PoclStage

# FairGV's matrixMul (207 us), launched one after the other with a wait after each, or fifty at a time.
INTERACTIVE = Load(207)
BATCH = Load(207, batch=50)
LOADS = {"interactive": INTERACTIVE, "batch": BATCH}
BASELINES = ("credit", "strict-coscheduling")
SCHEDULERS = ("fair", "wfq-poll", "wfq-aimd", "slices", *BASELINES)
# The schedulers that `./x bench --scheduler` asks for, where an experiment compares schedulers; empty: all.
CHOSEN = []
# FairGV, figure 11, and beyond it.
BACKGROUND_US = (21, 100, 500, 1605, 100_000)


def seconds(quick):
    return 4 if quick else 20


def chosen(schedulers):
    return [scheduler for scheduler in schedulers if scheduler in CHOSEN or not CHOSEN]


def _weights(make_stage, experiment, weights, cpus, quick):
    """One set of weights under every scheduler, interactive and not: the worse of both counts."""
    results = {}
    with make_stage() as stage:
        for name, load in LOADS.items():
            tenants = [Tenant(weight, load, cpu=cpu) for weight, cpu in zip(weights, cpus, strict=True)]
            for scheduler in chosen(SCHEDULERS):
                # An experiment with targets is measured for as long as they ask for.
                turns = stage.turns if scheduler == "fair" and not quick else (seconds(quick),)
                mmr, overhead = in_turns(stage, scheduler, tenants, turns)
                key = f"fair.{experiment}.{scheduler}"
                results[f"{key}.mmr_{name}"], results[f"{key}.overhead_{name}"] = mmr, overhead
                results[f"{key}.mmr"] = min(mmr, results.get(f"{key}.mmr", 1.0))
                results[f"{key}.overhead"] = max(overhead, results.get(f"{key}.overhead", 0.0))
    return results


def in_turns(stage, scheduler, tenants, turns):
    """Tenants of one load, and that alone without Aviary before and after each of the turns (seconds): the min-max ratio of what
    they got in all turns, and how much more one program alone got."""
    alone = [Tenant(1, tenants[0].load)]
    natively = partial(stage.run, None, alone, turns[0] / 2, native=True)
    native, together = [natively().utilization()], []
    for length in turns:
        together.append(stage.run(scheduler, tenants, length))
        native.append(natively().utilization())
    return min_max_ratio(together), fmean(native) / fmean(outcome.utilization() for outcome in together)


def w123(make_stage, name, quick):
    """FairGV, figure 8: three tenants on one core."""
    return _weights(make_stage, name, (1, 2, 3), (0, 0, 0), quick)


def w122334(make_stage, name, quick):
    """FairGV, figure 9: six tenants; three cores there, two here."""
    return _weights(make_stage, name, (1, 2, 2, 3, 3, 4), (0, 0, 0, 1, 1, 1), quick)


def mixed_kernels(make_stage, name, quick):
    """FairGV, figure 11: kernels of other sizes in the background. 1.0 is the foreground's entitlement."""
    length, results = seconds(quick), {}
    with make_stage() as stage:
        alone = stage.run(None, [Tenant(1, INTERACTIVE)], length / 2, native=True).busy() / (length / 2)
        for scheduler in chosen(("fair", *BASELINES)):
            worst, worst_overhead = 1.0, 0.0
            for background in BACKGROUND_US:
                tenants = [Tenant(1, INTERACTIVE), Tenant(1, Load(background, batch=max(1, 10_000 // background)))]
                outcome = stage.run(scheduler, tenants, length)
                # Run time against the one alone, halved: half of the device is what it is entitled to.
                normalized = alone / (2 * outcome.busy(0) / length)
                results[f"fair.{name}.{scheduler}.runtime_{background}us"] = normalized
                worst = min(worst, min_max_ratio([outcome]))
                worst_overhead = max(worst_overhead, alone / 1e9 / outcome.utilization())
            results[f"fair.{name}.{scheduler}.mmr"] = worst
            results[f"fair.{name}.{scheduler}.overhead"] = worst_overhead
    return results


def pairs(make_stage, name, quick):
    """AvA, figure 13: pairs of tenants whose kernels take 1 to 100 ms."""
    length, results = 10 if quick else 30, {}
    sizes = (1000, 5000, 20_000, 50_000, 100_000)
    two_sizes = list(itertools.combinations(sizes, 2))
    if quick:
        two_sizes = random.Random(1).sample(two_sizes, 3)
    with make_stage() as stage:
        for scheduler in chosen(("wfq-poll", "wfq-aimd", "fair")):
            halves, wholes, overheads = [], [], []
            for one, two in two_sizes:
                loads = [Load(one), Load(two)]
                native = sum(stage.run(None, [Tenant(1, load)], 2, native=True).utilization() for load in loads) / 2
                outcome = stage.run(scheduler, [Tenant(1, load) for load in loads], length)
                halves += outcome.unfairness(0.5)
                wholes += outcome.unfairness(1.0)
                overheads.append(native / outcome.utilization())
            key = f"fair.{name}.{scheduler}"
            results[f"{key}.unfairness_500ms"] = median(halves)
            results[f"{key}.unfairness_1s"] = median(wholes)
            results[f"{key}.overhead"] = median(overheads)
    return results


def sleepers(make_stage, name, quick):
    """FairGV, figure 10: one tenant that could use the whole device, one that sleeps for part of its time."""
    length, results = seconds(quick), {}
    with make_stage() as stage:
        for percent in (50, 60, 70, 80):
            # 5 ms of work, then a pause that makes it `percent` of the whole.
            pause = int(5000 * percent / (100 - percent))
            tenants = [Tenant(1, BATCH), Tenant(1, Load(500, batch=10, pause_us=pause))]
            outcome = stage.run("fair", tenants, length)
            results[f"fair.{name}.fair.utilization_{percent}"] = outcome.utilization()
        results[f"fair.{name}.fair.utilization"] = min(results.values())
    return results


def turns(make_stage, name, quick):
    """Optimus, 6.8: expected against actual time with weighted slices, one to sixteen tenants."""
    # A slice more or less is 1% of what each of sixteen gets in 20 s.
    length, results, errors = 3 * seconds(quick), {}, []
    with make_stage() as stage:
        for count in (1, 2, 4, 8, 16):
            tenants = [Tenant(1 + i % 2, Load(500, batch=10), priority=1) for i in range(count)]
            outcome = stage.run("slices", tenants, length, slice_ms=10)
            weights = sum(tenant.weight for tenant in tenants)
            for i, tenant in enumerate(tenants):
                errors.append(abs(outcome.busy(i) / (outcome.busy() * tenant.weight / weights) - 1))
            results[f"fair.{name}.slices.utilization_{count}"] = outcome.utilization()
        results[f"fair.{name}.slices.error"] = sum(errors) / len(errors)
        high = [Tenant(1, BATCH, priority=2), Tenant(1, BATCH, priority=1)]
        outcome = stage.run("priority", high, length)
        results[f"fair.{name}.priority.share_of_the_highest"] = outcome.busy(0) / outcome.busy()
        pause_us = 20_000
        pair = [Tenant(1, Load(1000, pause_us=pause_us), priority=2), Tenant(1, Load(500, batch=200), priority=1)]
        for scheduler in chosen(("priority", "fair")):
            ends = [end for _, end, tenant in stage.run(scheduler, pair, length).records if tenant == 0]
            waits = [(end - before) / 1e6 - pause_us / 1000 for before, end in itertools.pairwise(ends)]
            results[f"fair.{name}.{scheduler}.latency_beside_batches_ms"] = median(waits)
    return results


def accounting(quick):
    """What the node believes that a tenant used, against the device's log (FairGV, table 2: below 3 percent)."""
    results, errors = {}, []
    with Stage() as stage:
        for kernel in (171, 207, 377, 391, 2000):
            believed, real = stage.believed(Load(kernel, batch=20), 2 if quick else 5)
            error = believed / real - 1
            results[f"fair.accounting.error_{kernel}us"] = error
            errors.append(abs(error))
    results["fair.accounting.error"] = max(errors)
    return results


MANY = 64
PEACEFUL = Load(500, batch=20)
# Beside some hostile tenants it takes longer to attach.
PATIENCE = 8.0
# Behaviour of a crowd's hostile program (apis/testapi/tests/nuisance.c), and the node's settings of the device.
NUISANCES = {
    "calls": (),
    "launches": (),
    "queue": (),
    "frames": (),
    "garbage": (),
    "crash": (),
    "sessions": (),
    # This device cannot be interrupted and its work not be cut: who waits is helped by `hold_limit`.
    "long": ('hold_limit = "500ms"',),
    "all": ('hold_limit = "500ms"',),
    # Without Aviary: what the same processors make of a neighbour that only uses them up.
    "burn": (),
}


def crowd(kinds, quick):
    """Sixty-three tenants and a hostile one: what each of them gets, against a run in which all 64 are peaceful."""
    length, results = 10 if quick else 40, {}
    with Stage() as stage:
        calm = stage.run("fair", [Tenant(1, PEACEFUL)] * MANY, length, patience=PATIENCE)
        due = calm.busy() / MANY
        results["fair.crowd.calm.worst"] = min(calm.busy(i) for i in range(MANY)) / due
        results["fair.crowd.calm.utilization"] = calm.utilization()
        for kind in kinds:
            tenants = [Tenant(1, Nuisance(kind)), *[Tenant(1, PEACEFUL)] * (MANY - 1)]
            node = {"extra": NUISANCES[kind], "top": ("sessions_per_user = 64",)}
            outcome = stage.run("fair", tenants, length, patience=PATIENCE, **node)
            shares = [outcome.busy(i) / due for i in range(MANY)]
            key = f"fair.crowd.{kind}"
            results[f"{key}.worst"] = min(shares[1:])
            results[f"{key}.median"] = median(shares[1:])
            results[f"{key}.hostile"] = shares[0]
            results[f"{key}.utilization"] = outcome.utilization()
    return results


FIGURES = {
    "mmr": "min-max ratio of normalized device time (target >= 0.99 for `fair`)",
    "overhead": "device time alone and native / together (target <= 1.02 for `fair`)",
    "unfairness_500ms": "|t1-t2|/(t1+t2) in windows of 500 ms, median (target <= 0.02 for wfq)",
    "unfairness_1s": "... of 1 s",
    "utilization": "of the device, the worst of 50 to 80% sleep (target >= 0.97)",
    "error": "between expected and actual time",
    "worst": "what the worst served of 63 tenants got beside a hostile one, of what each gets when all 64 are peaceful (target >= 0.97)",
    "median": "... the median of them",
    "hostile": "... the hostile one",
    "share_of_the_highest": "what the higher priority got",
    "latency_beside_batches_ms": "of a kernel of 1 ms beside batches of 500 us of a lower priority, median (target <= 2)",
}
SHARED = {
    "w123": w123,
    "w122334": w122334,
    "mixed_kernels": mixed_kernels,
    "pairs": pairs,
    "sleepers": sleepers,
    "turns": turns,
}
EXPERIMENTS = {name: partial(measured, Stage, name) for name, measured in SHARED.items()}
EXPERIMENTS |= {"accounting": accounting}
EXPERIMENTS |= {f"crowd.{kind}": partial(crowd, [kind]) for kind in NUISANCES}
# Not on PoCL: `accounting`, as nothing there says what a kernel really took, and `crowd`, whose hostile tenant has
# queued minutes of work when the others end.
EXPERIMENTS |= {f"pocl_{name}": partial(measured, PoclStage, f"pocl_{name}") for name, measured in SHARED.items()}
