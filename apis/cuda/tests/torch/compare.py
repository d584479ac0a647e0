"""What the reference driver was asked for by the same program, directly and through Aviary; and what the guest waited for.

DIRECT and REMOTE are traces of the reference driver, GUEST is one of the guest's library (AVIARY_TRACE). A question for
free memory begins each step of a training. Prints `ok NAME` or `FAIL NAME` for each comparison, and why.
"""
import argparse
import re
import sys

STEP = "cuMemGetInfo"
SIZES = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes")
COPY = re.compile(r"cuMemcpy(HtoD|DtoH|DtoD)")


def fields(line):
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def work(path):
    """In the order in which the driver was asked: launches, fills, copies. And the launches' parameters."""
    asked, parameters, refused = [], [], []
    for line in open(path, encoding="utf-8", errors="replace"):
        if not line.startswith(("cuLaunch", "cuMemset", "cuMemcpy", "cuGraphLaunch", STEP)):
            continue
        if not line.endswith("-> CUDA_SUCCESS\n"):
            refused.append(line)
            continue
        name, found = line.split()[0], fields(line)
        stream = found.get("stream") or found.get("hStream") or "default"
        copy = COPY.match(name)
        if name.startswith("cuLaunch"):
            # The forms of a launch count as one: without attributes they mean the same.
            sizes = " ".join(found.get(size, "0") for size in SIZES)
            asked.append(f"launch {found.get('kernel')} {sizes} {stream} {found.get('attributes', '')}")
            parameters.append((found.get("kernel"), found.get("parameters", "")))
        elif copy:
            # Ordinary memory may be copied in pieces: neighbours of one direction count as one.
            kind = ("copy", copy[1], stream)
            size = int(found["ByteCount"])
            if asked and asked[-1][:3] == kind:
                size += asked.pop()[3]
            asked.append((*kind, size))
        else:
            numbers = " ".join(f"{key}={value}" for key, value in found.items() if key not in ("stream", "hStream"))
            asked.append(f"{re.sub('(_v2|_pt[ds][sz])+$', '', name)} {numbers} {stream}")
    return asked, parameters, refused


def verdict(good, name, why=()):
    print("ok  " if good else "FAIL", name)
    if not good:
        print("".join(f"       {line}\n" for line in why), end="")
    return good


def same_work(direct, remote):
    launches = sum(str(what).startswith("launch") for what in direct)
    place = next((i for i, (one, other) in enumerate(zip(direct, remote)) if one != other), min(len(direct), len(remote)))
    good = direct == remote and launches > 0
    why = [f"at {place} of {len(direct)} directly and {len(remote)} through Aviary:", *map(str, direct[place : place + 3]),
           "through Aviary:", *map(str, remote[place : place + 3])]
    counts = f"{launches} launches, {len(direct) - launches} fills and copies"
    return verdict(good, f"the same work on the device, in the same order: {counts}", why)


def same_parameters(direct, remote):
    """Padding is what lay on the application's stack, so a launch agrees if most of its parameters do, and most launches
    have to agree."""
    odd = []
    for (kernel, one), (_, other) in zip(direct, remote):
        words = [(one[i : i + 2], other[i : i + 2]) for i in range(0, len(one), 2)]
        known = [(here, there) for here, there in words if "~~" not in (here, there)]
        equal = sum(here == there for here, there in known) / max(len(known), 1) if len(one) == len(other) else 0
        if equal < 0.75:
            odd.append((equal, f"{100 * equal:.0f} % of {kernel[:100]}: {one[:60]} and {other[:60]}"))
    agree = 100 * (1 - len(odd) / max(len(direct), 1))
    return verdict(agree >= 90, f"the same parameters of kernels, but for padding: in {agree:.1f} % of the launches",
                   [why for _, why in sorted(odd)[:10]])


def few_waits(path, per_step, in_all):
    """Waits of each step, without the question that begins it; the last counts, as the first ones load and remember."""
    steps, total = [], 0
    for line in open(path, encoding="utf-8", errors="replace"):
        name, waited = line.split()[3], " waited " in line
        total += waited
        if name.startswith(STEP):
            steps.append([])
        elif steps and waited:
            steps[-1].append(name)
    # Anything after the last question is no step.
    *before, last = steps[:-1] or [["no step"] * (per_step + 1)]
    counts = f"a step waits {len(last)} times (at most {per_step}); the steps before: {[len(step) for step in before]}"
    good = verdict(len(last) <= per_step, counts, last[:20])
    return verdict(total <= in_all, f"the program waits {total} times in all (at most {in_all})") and good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("direct")
    parser.add_argument("remote")
    parser.add_argument("--parameters", action="store_true", help="compare the parameters of kernels, too")
    parser.add_argument("--waits", nargs=3, metavar=("GUEST", "IN_A_STEP", "IN_ALL"), help="how often the guest may wait")
    given = parser.parse_args()
    (one, one_parameters, refused), (other, other_parameters, refused_there) = work(given.direct), work(given.remote)
    refused += refused_there
    good = verdict(not refused, "no work was refused", [line.strip()[:300] for line in refused[:10]])
    good &= same_work(one, other)
    if given.parameters:
        good &= same_parameters(one_parameters, other_parameters)
    if given.waits:
        good &= few_waits(given.waits[0], *map(int, given.waits[1:]))
    sys.exit(not good)


main()
