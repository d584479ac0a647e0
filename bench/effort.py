"""Effort of describing an API: writes docs/effort.md, or checks that it is up to date.

  ./x effort            writes the page
  ./x effort --check    compares it with what there is: functions exactly, lines within a tenth

Needs the APIs built (`./x setup`). Lines are counted as AvA's paper counts them: blank lines and comments included. Churn is what
commits added and removed in the same files, and what the working tree has beyond them.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AVIARY = ROOT / "target" / "release" / "aviary"
CACHE = ROOT / "target" / "cache"
PAGE = ROOT / "docs" / "effort.md"
# Folders and files of an API that are no part of describing it.
OTHER = ("tests", "src", "include", "build", "refdriver")
# A page may lag behind by this part of each number of lines, or so many lines.
SLACK, SLACK_LINES = 0.1, 30

# AvA (ASPLOS '20), Table 5: functions, lines, churn.
AVA = (
    ("OpenCL 1.2, by hand", 39, 7514, 14318),
    ("OpenCL 1.2", 38, 1060, 2868),
    ("CUDA 10 driver", 16, 266, 410),
    ("CUDA 10 runtime", 93, 1358, 1973),
    ("TensorFlow 1.12 C", 46, 501, 887),
    ("TensorFlow 1.14 Python", 111, 1865, 2557),
    ("NCSDK v2", 26, 479, 1279),
    ("GTI SDK 4.4", 38, 284, 568),
    ("FPGA on AmorphOS", 4, 30, 40),
    ("QuickAssist 1.7", 19, 444, 676),
    ("HIP", 41, 624, 990),
)
# The row of AvA's that is compared with each API.
BESIDE = {"opencl": "OpenCL 1.2", "cuda": "CUDA 10 driver", "isal": "QuickAssist 1.7", "tensorflow": "TensorFlow 1.12 C",
          "openvino": "NCSDK v2"}

HEAD = """# Effort

What the description of an API costs a person, and what AvA's did. `./x effort` writes this page
from the tree; `./x test effort` and `./x lint` check that it is up to date (functions exactly,
lines within a tenth).

Functions are those of the headers; *described* are those that the specification does not leave
unsupported. Lines are those of the specification and of the C that it brings along, with blank
lines and comments, as in AvA's Table 5 (ASPLOS '20). Churn is what commits added and removed in
these files. Generated lines are what `aviary spec build` prints (Rust and C), which nobody writes
or keeps.
"""


@dataclass
class Effort:
    """One row of the page."""

    api: str
    functions: int
    described: int
    lapis: int
    utility: int
    churn: int
    generated: int

    @property
    def per_function(self):
        return (self.lapis + self.utility) / max(self.described, 1)

    def row(self):
        return (f"| {self.api} | {self.functions} | {self.described} | {self.lapis} | {self.utility} | {self.churn} "
                f"| {self.generated} | {self.per_function:.1f} | {beside(self.api)} |")


def beside(api):
    name = BESIDE.get(api)
    row = next((row for row in AVA if row[0] == name), None)
    return f"{row[2] / row[1]:.1f} ({row[0]}: {row[2]} for {row[1]})" if row else "-"


def lines(files):
    return sum(file.read_bytes().count(b"\n") for file in files)


def belongs(folder, file):
    """True for what describes the API: its specification, and the C of both sides."""
    parts = file.relative_to(folder).parts
    return file.suffix in (".lapis", ".c", ".h") and not any(part in OTHER for part in parts[:-1])


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def churn(folder):
    """Lines that were added and removed, in commits and since the last one."""
    texts = (git("log", "--no-merges", "--numstat", "--format=", "--", str(folder)), git("diff", "HEAD", "--numstat", "--", str(folder)))
    total = 0
    for added, removed, name in re.findall(r"^(\d+)\t(\d+)\t(.+)$", "".join(texts), flags=re.M):
        # A renamed file is written with both of its names.
        name = re.sub(r"\{.* => (.*)\}", r"\1", name).replace("//", "/").split(" => ")[-1]
        if belongs(folder, ROOT / name):
            total += int(added) + int(removed)
    return total


def coverage(specification):
    done = subprocess.run([AVIARY, "spec", "coverage", "-I", CACHE / "cuda-headers", "-I", CACHE / "nvml-headers",
                           "-I", CACHE / "onnxruntime" / "include", "-I", CACHE / "pjrt-headers",
                           "-I", CACHE / "openvino" / "include", "-I", ROOT / "fpga/opae/include", specification],
                          capture_output=True, text=True)
    counts = re.search(r"^(\d+) functions: (.*)$", done.stdout, flags=re.M)
    if done.returncode != 0 or not counts:
        sys.exit(f"effort: {specification}: {done.stderr or done.stdout}")
    unsupported = re.search(r"(\d+) unsupported", counts.group(2))
    return int(counts.group(1)), int(counts.group(1)) - int(unsupported.group(1) if unsupported else 0)


def efforts():
    """A row for each API; none for one that is not built here."""
    for specification in sorted(ROOT.glob("apis/*/*.lapis")):
        if not re.search(r"^\s*api\(", specification.read_text(), flags=re.M):
            continue
        folder = specification.parent
        generated = ROOT / "target" / "aviary" / folder.name / "gen"
        if not generated.is_dir():
            print(f"effort: {folder.name} is not built: run ./x setup", file=sys.stderr)
            continue
        files = [file for file in folder.rglob("*") if file.is_file() and belongs(folder, file)]
        functions, described = coverage(specification)
        yield Effort(
            folder.name, functions, described,
            lines(file for file in files if file.suffix == ".lapis"),
            lines(file for file in files if file.suffix != ".lapis"),
            churn(folder),
            lines(file for file in generated.rglob("*") if file.suffix in (".rs", ".c", ".h")),
        )


def page(rows):
    text = HEAD + "\n| API | functions | described | LAPIS | C | churn | generated | lines per function | AvA's |\n"
    text += "|---|---|---|---|---|---|---|---|---|\n"
    text += "".join(row.row() + "\n" for row in rows)
    text += "\n## AvA\n\n| API | functions | lines | churn | lines per function |\n|---|---|---|---|---|\n"
    text += "".join(f"| {name} | {count} | {loc} | {moved} | {loc / count:.1f} |\n" for name, count, loc, moved in AVA)
    return text


def written():
    """The rows of the page as it is, by API."""
    text = PAGE.read_text() if PAGE.exists() else ""
    found = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", text, flags=re.M)
    return {row[0]: [int(number) for number in row[1:]] for row in found}


def differences(rows):
    known = written()
    # A clone without history cannot count what commits moved.
    shallow = git("rev-parse", "--is-shallow-repository").strip() == "true"
    for row in rows:
        before = known.get(row.api)
        now = [row.functions, row.described, row.lapis, row.utility, row.churn, row.generated]
        names = ("functions", "described", "LAPIS", "C", "churn", "generated")
        if before is None:
            yield f"{row.api} is not on the page"
            continue
        for name, old, new in zip(names, before, now):
            slack = 0 if name in ("functions", "described") else max(SLACK * new, SLACK_LINES)
            if abs(old - new) > slack and not (shallow and name == "churn"):
                yield f"{row.api}: {name} is {new}, the page says {old}"


def main():
    parser = argparse.ArgumentParser(prog="./x effort", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say whether docs/effort.md is up to date")
    arguments = parser.parse_args()
    rows = list(efforts())
    if not arguments.check:
        PAGE.write_text(page(rows))
        return print(PAGE.relative_to(ROOT))
    problems = list(differences(rows))
    for problem in problems:
        print(f"effort: {problem}: run ./x effort")
    return sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
