"""Pictures of what `./x bench fpga` measured, as Figures 4 to 8 of OPTIMUS, and its Tables 2 to 4 beside the paper's numbers.

Whatever was not measured is left out.
"""

import re
from pathlib import Path

from matplotlib import pyplot

# Of the paper, Table 2: percent of ALMs of one accelerator without a monitor, and of the monitor.
ALMS = {"monitor": 6.16, "aes": 3.62, "md5": 4.35, "sha": 2.16, "fir": 1.92, "grn": 1.76, "rsd": 2.21, "sw": 1.42, "grs": 1.32, "gau": 3.41,
        "sbl": 2.39, "sssp": 1.96, "btc": 1.32, "mb": 0.83, "ll": 0.15}
BLOCKS = {"monitor": 0.48, "aes": 2.82, "md5": 2.82, "sha": 2.82, "fir": 2.82, "grn": 1.02, "rsd": 2.87, "sw": 1.47, "grs": 2.28, "gau": 2.60,
          "sbl": 2.55, "sssp": 2.82, "btc": 0.48, "mb": 0.0, "ll": 0.0}
# Of the paper, section 6.7: (max - min) / mean of eight, and the throughput of an MB beside one.
RANGE = {"aes": 21.9e-4, "md5": 11.9e-4, "sha": 4.40e-4, "fir": 30.1e-4, "grn": 108e-4, "rsd": 1.77e-4, "sw": 3.79e-4, "gau": 63.1e-4,
         "grs": 1.60e-4, "sbl": 147e-4, "sssp": 595e-4, "btc": 0.468e-4, "mb": 1.83e-4, "ll": 3.25e-4}
BESIDE = {"aes": 0.86, "md5": 0.50, "sha": 0.77, "fir": 0.75, "grn": 1.00, "rsd": 0.78, "sw": 0.78, "gau": 0.80, "grs": 0.80, "sbl": 0.79,
          "sssp": 0.75, "btc": 1.00, "mb": 0.50, "ll": 1.00}


def found(results, pattern):
    """What the groups of the pattern are, and the value, of each figure that it is."""
    matches = ((re.fullmatch(pattern, name), value) for name, value in results.items())
    return [(*match.groups(), value) for match, value in matches if match]


def lines_of(points):
    """name -> sorted (x, y)."""
    lines = {}
    for name, x, y in points:
        lines.setdefault(name, []).append((int(x), y))
    return {name: sorted(line) for name, line in sorted(lines.items())}


def draw_lines(axes, lines, title, across):
    for name, line in lines.items():
        axes.plot(*zip(*line, strict=True), marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    ticks = sorted({x for line in lines.values() for x, _ in line})
    axes.set_xticks(ticks, [str(x) for x in ticks], fontsize=8)
    axes.set_xlabel(across, fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def overhead(results, axes):
    measured = sorted(found(results, r"fpga\.(\w+)\.vs_passthrough"))
    axes.bar([name for name, _ in measured], [value for _, value in measured])
    axes.axhline(0.99, color="black", linewidth=0.8, linestyle="--")
    axes.set_ylim(0.9, 1.01)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title("Figure 4: work per cycle against pass-through", fontsize=10)


def working_sets(name, page, title):
    def draw(results, axes):
        points = found(results, rf"fpga\.{name}\.pages_{page}\.(\d+)MB\.(\d+)")
        lines = lines_of((f"{ports} at once", size, value) for size, ports, value in points)
        draw_lines(axes, lines, f"{title}, pages of {page} (a model)", "megabytes of all together")
    return draw


NODES, LINES = "Figure 5: cycles per node of LL", "Figure 6: lines per cycle of all MB"


def scale(results, axes):
    draw_lines(axes, lines_of(found(results, r"fpga\.(\w+)\.scale\.(\d+)")), "Figure 7: work of copies against one", "copies")


def turns(results, axes):
    lost = found(results, r"fpga\.(\w+)\.temporal\.(\d+)")
    draw_lines(axes, lines_of((name, count, 1 - value) for name, count, value in lost), "Figure 8: work in turns of 10 ms against alone", "in turn")


# What a picture needs one figure of, and what draws it.
PICTURES = {
    "figure4": (r"fpga\.(\w+)\.vs_passthrough", [overhead]),
    "figure5": (r"fpga\.ll\.pages_.*", [working_sets("ll", "2M", NODES), working_sets("ll", "4K", NODES)]),
    "figure6": (r"fpga\.mb\.pages_.*", [working_sets("mb", "2M", LINES), working_sets("mb", "4K", LINES)]),
    "figure7": (r"fpga\.(\w+)\.scale\.(\d+)", [scale]),
    "figure8": (r"fpga\.(\w+)\.temporal\.(\d+)", [turns]),
}


def areas(results):
    """The lines of Table 2."""
    found_of = {kind: dict(found(results, rf"fpga\.{kind}\.(\w+)")) for kind in ("area", "bram", "multipliers", "depth")}
    measured = found_of["area"]
    if not measured:
        return []
    text = ["Table 2: percent of an Arria 10 GX1150, of the monitor with eight ports and of one accelerator. Synthesized by yosys for "
            "Cyclone V, **not placed and routed**: ALMs are those needed at least.", "",
            "| | ALMs here | paper | memory blocks here | paper | multipliers | levels of logic |", "|---|---|---|---|---|---|---|"]
    for name in sorted(measured, key=lambda name: (name != "monitor", name)):
        cells = [f"{measured[name]:.2f}", ALMS.get(name, ""), f"{found_of['bram'][name]:.2f}", BLOCKS.get(name, ""),
                 found_of["multipliers"].get(name, 0), found_of["depth"][name]]
        text.append(f"| {name} | {' | '.join(f'{cell:g}' if isinstance(cell, float | int) else cell for cell in cells)} |")
    return [*text, ""]


def tables(results):
    """Tables 2 to 4, as text with the paper's numbers beside. Empty: none was measured."""
    text = areas(results)
    for number, title, pattern, paper in (
        (3, "eight copies: (max - min) / mean of their work", r"fpga\.(\w+)\.fair", RANGE),
        (4, "MB beside the accelerator against alone", r"fpga\.(\w+)\.colocated", BESIDE),
    ):
        measured = dict(found(results, pattern))
        if measured:
            text += [f"Table {number}: {title}", "", "| | here | paper |", "|---|---|---|"]
            text += [f"| {name} | {measured.get(name, ''):.5g} | {value:.5g} |" for name, value in sorted(paper.items()) if name in measured]
            text.append("")
    return "\n".join(text)


def draw(results, start):
    """The files that were written: START.FIGURE.png, START.fpga-tables.md."""
    for name, (needs, diagrams) in PICTURES.items():
        if found(results, needs):
            picture, rows = pyplot.subplots(1, len(diagrams), figsize=(6.5 * len(diagrams), 4.2), squeeze=False)
            for axes, diagram in zip(rows[0], diagrams, strict=True):
                diagram(results, axes)
            picture.tight_layout()
            file = f"{start}.fpga-{name}.png"
            picture.savefig(file, dpi=120)
            pyplot.close(picture)
            yield file
    if text := tables(results):
        file = f"{start}.fpga-tables.md"
        Path(file).write_text(text, encoding="utf-8")
        yield file
