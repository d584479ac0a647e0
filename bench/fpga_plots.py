"""Pictures of what `./x bench fpga` measured, as Figures 4 and 6 to 8 of OPTIMUS, and its Tables 3 and 4 beside the paper's numbers.

Whatever was not measured is left out. Figure 5 and Table 2 are not measured: see docs/fpga.md.
"""

import re
from pathlib import Path

from matplotlib import pyplot

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


def working_sets(page):
    def draw(results, axes):
        points = found(results, rf"fpga\.mb\.pages_{page}\.(\d+)MB\.(\d+)")
        lines = lines_of((f"{ports} at once", size, value) for size, ports, value in points)
        draw_lines(axes, lines, f"Figure 6: lines per cycle of all MB, pages of {page} (a model)", "megabytes of all together")
    return draw


def scale(results, axes):
    draw_lines(axes, lines_of(found(results, r"fpga\.(\w+)\.scale\.(\d+)")), "Figure 7: work of copies against one", "copies")


def turns(results, axes):
    lost = found(results, r"fpga\.(\w+)\.temporal\.(\d+)")
    draw_lines(axes, lines_of((name, count, 1 - value) for name, count, value in lost), "Figure 8: work in turns of 10 ms against alone", "in turn")


# What a picture needs one figure of, and what draws it.
PICTURES = {
    "figure4": (r"fpga\.(\w+)\.vs_passthrough", [overhead]),
    "figure6": (r"fpga\.mb\.pages_.*", [working_sets("2M"), working_sets("4K")]),
    "figure7": (r"fpga\.(\w+)\.scale\.(\d+)", [scale]),
    "figure8": (r"fpga\.(\w+)\.temporal\.(\d+)", [turns]),
}


def tables(results):
    """Tables 3 and 4, as text with the paper's numbers beside. Empty: neither was measured."""
    text = []
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
