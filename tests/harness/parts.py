"""The parts of `./x test`: what runs, what it is called, and what it must not run beside."""

import re
from dataclasses import dataclass, field

from harness.process import ROOT

# Scripts that are parts. The last line of each is `N passed, N failed` (report.py and check.sh print it); a line
# `# harness: WORDS` among its first says how it wants to run:
#   alone   nothing else runs meanwhile: it counts what other work on the machine changes
#   long    only with --long
SCRIPTS = ("apis/*/tests/run", "apis/*/tests/*/run", "tests/*.sh", "tests/*/run", "tests/*/*/run", "guest-driver/*/tests/run",
           "examples/*/test", "fpga/tests/run")
WORDS = {"alone", "long"}
# Seconds after which a part hangs.
LIMIT = 1800


@dataclass(frozen=True)
class Part:
    """One command with counts of its own."""

    name: str
    command: tuple
    alone: bool = False
    long: bool = False
    # Added to the environment.
    environment: dict = field(default_factory=dict, hash=False)


def script_name(path):
    """apis/cuda/tests/torch/run is cuda-torch, tests/callcost.sh is callcost."""
    words = path.relative_to(ROOT).with_suffix("").parts
    return "-".join(word for word in words if word not in ("apis", "tests", "run", "test"))


def script_words(path):
    head = "".join(path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[:30])
    words = " ".join(re.findall(r"^# harness: (.*)$", head, re.M)).split()
    if set(words) - WORDS:
        raise SystemExit(f"{path}: `# harness:` knows {' '.join(sorted(WORDS))}, not {' '.join(sorted(set(words) - WORDS))}")
    return words


def scripts():
    paths = sorted({path for pattern in SCRIPTS for path in ROOT.glob(pattern)})
    for path in paths:
        if path.is_file() and path.stat().st_mode & 0o111:
            words = script_words(path)
            yield Part(script_name(path), (str(path),), alone="alone" in words, long="long" in words)


def models():
    """Ring protocols in every interleaving, and code with `unsafe` or of the wire under Miri."""
    cargo = ("cargo", "test", "--release", "--package", "aviary-ring", "--test", "model")
    yield Part("loom", cargo, environment={"RUSTFLAGS": "--cfg loom", "CARGO_TARGET_DIR": str(ROOT / "target/loom")})
    yield Part("miri", (str(ROOT / "tests/miri"),))


def fuzz_targets():
    for source in sorted(ROOT.glob("crates/*/fuzz/fuzz_targets/*.rs")):
        crate, target = source.parents[2].name, source.stem
        yield Part(f"fuzz-{crate}-{target}", (str(ROOT / "tests/fuzz"), "--test", f"{crate}/{target}"))


def all_parts():
    """In the order in which they begin: what compiles and takes longest first."""
    rust = Part("rust", ("cargo", "test", "--workspace", "--release", "--no-fail-fast"))
    return [rust, *scripts(), *models(), *fuzz_targets()]


def chosen(names, long):
    """The parts of these names; without names all. Long ones with `long`, or by their whole names. An unknown name is an error.

    A name is a part's, or the beginning of several up to a `-`: `cuda` is cuda and cuda-torch, `moving` is not moving-long.
    """
    parts = all_parts()
    if not names:
        return [part for part in parts if long or not part.long]
    wanted = [part for name in names for part in named(parts, name, long)]
    return [part for part in parts if part in wanted]


def named(parts, name, long):
    """The parts of one name; of the long ones only that itself, unless there is no other."""
    found = [part for part in parts if part.name == name or part.name.startswith(name + "-")]
    if not found:
        raise SystemExit(f"x: no part of the tests is called {name}; there is: {' '.join(part.name for part in parts)}")
    return [part for part in found if long or not part.long or part.name == name] or found
