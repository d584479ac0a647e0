"""Pictures of what `./x bench fair` measured, one PNG per experiment, of `./x bench vm.bulk` and `./x bench fpga`.

    plots.py START <results.json      writes START.EXPERIMENT.png, START.vm-bulk.png, START.fpga-*

Needs matplotlib, which `./x setup` installs into a folder of its own; bench.py runs this with that one.
"""

import json
import math
import re
import sys

import matplotlib

matplotlib.use("Agg")
import fpga_plots  # noqa: E402
from matplotlib import pyplot  # noqa: E402

# Targets of DESIGN and the papers for the figure, drawn as a line.
WANTED = {"mmr": 0.99, "overhead": 1.02, "runtime": 1.0, "unfairness": 0.02, "utilization": 0.97}
TITLES = {
    "mmr": "min-max ratio",
    "overhead": "overhead",
    "runtime": "normalized run time of the foreground",
    "unfairness": "|t1-t2|/(t1+t2), median",
    "utilization": "utilization",
    "error": "relative error",
    "share": "share of the highest priority",
    "of due": "share of what is due",
}


def kind_of(figure):
    """Figures that are drawn into one diagram."""
    return "of due" if figure.endswith("_of_due") else figure.split("_")[0]


def sorted_by_kind(results):
    """experiment -> kind -> figure -> scheduler -> value, of names such as fair.w123.credit.mmr_batch."""
    found = {}
    for name, value in results.items():
        parts = name.split(".")
        if len(parts) == 4 and parts[0] == "fair":
            _, experiment, scheduler, figure = parts
            kinds = found.setdefault(experiment, {})
            kinds.setdefault(kind_of(figure), {}).setdefault(figure, {})[scheduler] = value
    return found


def diagram(axes, kind, figures):
    """Bars: one group per scheduler, one colour per figure."""
    schedulers = list(dict.fromkeys(scheduler for values in figures.values() for scheduler in values))
    width = 0.8 / len(figures)
    for number, (figure, values) in enumerate(figures.items()):
        places = [i + (number - (len(figures) - 1) / 2) * width for i, s in enumerate(schedulers) if s in values]
        heights = [values[s] for s in schedulers if s in values]
        axes.bar(places, heights, width, label=figure)
    if kind in WANTED:
        axes.axhline(WANTED[kind], color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(schedulers)), schedulers, rotation=20, ha="right", fontsize=8)
    axes.set_title(TITLES.get(kind, kind), fontsize=10)
    # Ratios close to 1 are told apart near 1.
    heights = [value for values in figures.values() for value in values.values() if math.isfinite(value)]
    if heights and kind in ("mmr", "overhead", "utilization", "of due") and min(heights) > 0.9:
        axes.set_ylim(bottom=0.88)
    if len(figures) > 1:
        axes.legend(fontsize=7, loc="lower right")


def draw(experiment, kinds, file):
    picture, rows = pyplot.subplots(1, len(kinds), figsize=(4.5 * len(kinds), 3.6), squeeze=False)
    for axes, (kind, figures) in zip(rows[0], kinds.items(), strict=True):
        diagram(axes, kind, figures)
    picture.suptitle(experiment)
    picture.tight_layout()
    picture.savefig(file, dpi=120)
    pyplot.close(picture)


BULK = re.compile(r"vm\.bulk\.(\w+)_(write|read)_(\d+)([KM])iB_MBps")
WAYS = {
    "pinned": "in place, huge pages",
    "scattered": "in place, scattered pages",
    "staged": "copied twice",
    "shared": "copied once, by the guest",
    "vsock": "vsock",
}


def draw_bulk(results, file):
    """Throughput by size, as Figures 3 and 4 of qCUDA: one diagram per direction, one line per way. False: nothing to draw."""
    lines = {}
    for name, rate in results.items():
        if found := BULK.fullmatch(name):
            way, direction, size, unit = found.groups()
            lines.setdefault(direction, {}).setdefault(way, []).append((int(size) << (20 if unit == "M" else 10), rate))
    if not lines:
        return False
    picture, rows = pyplot.subplots(1, len(lines), figsize=(6 * len(lines), 4.2), squeeze=False, sharey=True)
    for axes, (direction, ways) in zip(rows[0], lines.items(), strict=True):
        for way, points in ways.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=WAYS.get(way, way))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({size for points in ways.values() for size, _ in points})[::2]
        axes.set_xticks(ticks, [f"{n >> 20} MiB" if n >> 20 else f"{n >> 10} KiB" for n in ticks], rotation=45, fontsize=8)
        axes.grid(alpha=0.3)
        axes.set_title(f"{direction}, MB/s", fontsize=10)
        axes.legend(fontsize=8)
    picture.suptitle(f"OpenCL buffers from inside a VM ({'KVM' if results.get('vm.kvm') else 'TCG'})")
    picture.tight_layout()
    picture.savefig(file, dpi=120)
    pyplot.close(picture)
    return True


def main():
    start = sys.argv[1]
    results = json.load(sys.stdin)
    if draw_bulk(results, f"{start}.vm-bulk.png"):
        print(f"wrote {start}.vm-bulk.png")
    for experiment, kinds in sorted_by_kind(results).items():
        file = f"{start}.{experiment}.png"
        draw(experiment, kinds, file)
        print(f"wrote {file}")
    for file in fpga_plots.draw(results, start):
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
