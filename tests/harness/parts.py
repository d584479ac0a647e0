"""The parts of `./x test`: what runs, what it is called, and what must be built before."""

import re
from dataclasses import dataclass, field

from harness import rust
from harness.process import ROOT

# Scripts that are parts. The last line of each is `N passed, N failed` (report.py and check.sh print it); a line
# `# harness: WORDS` among its first says what it needs:
#   images  images of the simulated card, and the programs that are built with them
#   long    runs only with --long
SCRIPTS = ("apis/*/tests/run", "apis/*/tests/*/run", "tests/*.sh", "tests/*/run", "tests/*/*/run", "guest-driver/*/tests/run",
           "examples/*/test", "fpga/tests/run")
WORDS = {"images", "long"}
# Seconds in which a part may print nothing and compute nothing: longer than any wait in a test (HANG).
QUIET = 300
# Parts that build: the Rust tests, those of the models (another configuration), the program in which callcost counts, images.
RUST, MODELS, COUNTED, IMAGES = "build-rust", "build-models", "build-counted", "build-images"
LOOM = {"RUSTFLAGS": "--cfg loom", "CARGO_TARGET_DIR": str(ROOT / "target/loom")}


@dataclass(frozen=True)
class Part:
    """One command with counts of its own."""

    name: str
    command: tuple
    long: bool = False
    # Names of the parts that build what it needs.
    after: tuple = ()
    # Added to the environment.
    environment: dict = field(default_factory=dict, hash=False)

    @property
    def builds(self):
        """It builds, and takes as long as that takes."""
        return self.name.startswith("build-")


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


# Needs of scripts beside images.
NEEDS = {"callcost": (COUNTED,), "delegate": (RUST,), "fpga-long": (RUST,)}


def scripts():
    paths = sorted({path for pattern in SCRIPTS for path in ROOT.glob(pattern)})
    for path in paths:
        if path.is_file() and path.stat().st_mode & 0o111:
            name, words = script_name(path), script_words(path)
            after = ((IMAGES,) if "images" in words else ()) + NEEDS.get(name, ())
            yield Part(name, (str(path),), long="long" in words, after=after)


def harness(*words):
    return ("python3", "-m", *words)


def rust_parts():
    yield Part(RUST, harness("harness.rust", "build"))
    for program in rust.programs():
        yield Part(program.part, harness("harness.rust", program.part), after=(RUST, IMAGES) if program.images else (RUST,))
    yield Part("rust-doc", ("cargo", "test", "--quiet", "--workspace", "--doc"), after=(RUST,))


def other_builds():
    """Rings and berths in every interleaving; the unit tests of the server as it is released, in which callcost counts; images."""
    model = ("cargo", "test", "--quiet", "--release", "--package", "aviary-ring", "--package", "aviary-delegate", "--test", "model")
    yield Part(MODELS, (*model, "--no-run"), environment=LOOM)
    yield Part("loom", model, after=(MODELS,), environment=LOOM)
    yield Part(COUNTED, ("python3", "bench/callcost.py", "build"))
    yield Part(IMAGES, ("fpga/build", "--tests"))


def long_parts():
    """Code with `unsafe` or of the wire under Miri; a broken order across threads; fuzz targets with sanitizers."""
    yield Part("miri", (str(ROOT / "tests/miri"),), long=True)
    yield Part("order-broken", (str(ROOT / "tests/order-broken"),), long=True)
    for source in sorted(ROOT.glob("crates/*/fuzz/fuzz_targets/*.rs")):
        crate, target = source.parents[2].name, source.stem
        yield Part(f"fuzz-{crate}-{target}", (str(ROOT / "tests/fuzz"), "--test", f"{crate}/{target}"), long=True)


def all_parts():
    return [*rust_parts(), *other_builds(), *scripts(), *long_parts()]


def chosen(names, long):
    """The parts of these names, and what builds for them; without names all. Long ones with `long`, or by their whole names. An
    unknown name is an error.

    A name is a part's, or the beginning of several up to a `-`: `cuda` is cuda and cuda-torch, `moving` is not moving-long.
    """
    parts = all_parts()
    if not names:
        wanted = [part for part in parts if long or not part.long]
    else:
        wanted = [part for name in names for part in named(parts, name, long)]
    builds = {name for part in wanted for name in part.after}
    return [part for part in parts if part in wanted or part.name in builds]


def named(parts, name, long):
    """The parts of one name; of the long ones only that itself, unless there is no other."""
    found = [part for part in parts if part.name == name or part.name.startswith(name + "-")]
    if not found:
        raise SystemExit(f"x: no part of the tests is called {name}; there is: {' '.join(part.name for part in parts)}")
    return [part for part in found if long or not part.long or part.name == name] or found
