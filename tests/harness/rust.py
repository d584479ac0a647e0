"""The Rust tests: cargo builds them in one step, then each test program is a part.

  python3 -m harness.rust build          builds all; target/tests/rust.json says which part is which program
  python3 -m harness.rust PART [TEST]    runs a program, or one of its tests, ignored or not

`[package.metadata.harness]` in a crate's Cargo.toml says what its programs need; the unit tests are called `unit`:

  process-per-test = ["unit", ...]   each test has a process of its own: it forks, counts what its process has, or sets signal
                                     handlers or variables
  images = true                      the images of the simulated card
"""

import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.process import ROOT

BUILT = ROOT / "target/tests/rust.json"
KEYS = {"process-per-test", "images"}
# Tests of a program that run at the same time, if each has a process.
AT_ONCE = 2


@dataclass(frozen=True)
class Program:
    """A test program: the unit tests of a crate, or one of its integration tests."""

    crate: str
    target: str
    process_per_test: bool
    images: bool

    @property
    def part(self):
        return f"rust-{self.crate}" + ("" if self.target == "unit" else f"-{self.target}")


def targets(folder):
    """What cargo finds in a crate by itself."""
    if (folder / "src/lib.rs").exists() or (folder / "src/main.rs").exists():
        yield "unit"
    yield from sorted(path.stem for path in folder.glob("tests/*.rs"))
    yield from sorted(path.parent.name for path in folder.glob("tests/*/main.rs"))


def programs(root=ROOT):
    found = []
    for manifest in sorted(root.glob("crates/*/Cargo.toml")):
        says = tomllib.loads(manifest.read_text(encoding="utf-8"))["package"].get("metadata", {}).get("harness", {})
        own = says.get("process-per-test", [])
        there = list(targets(manifest.parent))
        if set(says) - KEYS or set(own) - set(there):
            raise SystemExit(f"{manifest}: [package.metadata.harness] knows {' '.join(sorted(KEYS))}, and the programs {' '.join(there)}")
        found += [Program(manifest.parent.name, target, target in own, says.get("images", False)) for target in there]
    return found


def artifacts(messages):
    """From cargo's messages: the test programs by part, how often each of our crates was compiled, what the compiler said."""
    executables, compiled, told = {}, {}, []
    for message in messages:
        if message["reason"] == "compiler-message":
            told.append(message["message"]["rendered"])
        if message["reason"] != "compiler-artifact" or not message["manifest_path"].startswith(f"{ROOT}/crates/"):
            continue
        crate, target = Path(message["manifest_path"]).parent.name, message["target"]
        if not message["fresh"] and "custom-build" not in target["kind"]:
            compiled[crate] = compiled.get(crate, 0) + 1
        if message["executable"] and message["profile"]["test"]:
            name = target["name"] if "test" in target["kind"] else "unit"
            executables[Program(crate, name, False, False).part] = message["executable"]
    return executables, compiled, told


def build():
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format", "json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    executables, compiled, told = artifacts(map(json.loads, done.stdout.splitlines()))
    print("".join(told), end="")
    if done.returncode:
        print("FAIL cargo compiles the tests\n0 passed, 1 failed")
        return 1
    expected = {program.part for program in programs()}
    if expected != set(executables):
        print(f"FAIL each test program is a part: {sorted(expected ^ set(executables))}\n0 passed, 1 failed")
        return 1
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    BUILT.write_text(json.dumps(executables, indent=1) + "\n", encoding="utf-8")
    print("compiled of ours: " + (", ".join(f"{crate} {count}" for crate, count in sorted(compiled.items())) or "nothing"))
    print(f"ok   {len(executables)} test programs\n1 passed, 0 failed")
    return 0


def executable(part):
    try:
        return json.loads(BUILT.read_text(encoding="utf-8"))[part]
    except (OSError, KeyError):
        raise SystemExit(f"{part} is not built: python3 -m harness.rust build") from None


def as_cargo_runs_it(program):
    """Folder and environment in which cargo starts a test program."""
    folder, deps = ROOT / "crates" / program.crate, Path(executable(program.part)).parent
    libraries = [str(deps), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"cwd": folder, "env": {**os.environ, "CARGO_MANIFEST_DIR": str(folder), "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}}


def listed(program, *options):
    command = [executable(program.part), "--list", "--format", "terse", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **as_cargo_runs_it(program))
    return [line.removesuffix(": test") for line in done.stdout.splitlines() if line.endswith(": test")]


def run_one(program, test, *options):
    """A test in a process of its own; what it printed if it failed, and what it skipped or counted."""
    command = [executable(program.part), "--exact", test, "--nocapture", "--test-threads=1", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **as_cargo_runs_it(program))
    text = done.stdout.decode(errors="replace")
    # Not none: a name that is not there.
    good = done.returncode == 0 and "1 passed" in text
    notes = [line for line in text.splitlines() if line.lower().startswith(("skip", "figure: "))]
    print("\n".join([f"{'ok  ' if good else 'FAIL'} {test}", *(notes if good else [text, f"     status {done.returncode}"])]), flush=True)
    return good


def run_each(program):
    ignored = set(listed(program, "--ignored"))
    tests = [test for test in listed(program) if test not in ignored]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda test: run_one(program, test), tests))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def run_whole(program):
    """All tests in one process, with what they print, as it may be that they skip something. A program that ends well without
    its result has ended in the middle of a test."""
    command = [executable(program.part), "--show-output"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **as_cargo_runs_it(program)) as process:
        ended = False
        for line in process.stdout:
            ended = ended or line.startswith(b"test result:")
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    if process.returncode == 0 and not ended:
        print("FAIL the program ended before its tests did")
    return process.returncode or (0 if ended else 1)


def main(arguments):
    if arguments == ["build"]:
        return build()
    part, *tests = arguments
    program = next((program for program in programs() if program.part == part), None)
    if not program:
        raise SystemExit(f"no test program is called {part}")
    if tests:
        return 0 if all([run_one(program, test, "--include-ignored") for test in tests]) else 1
    if program.process_per_test:
        return run_each(program)
    return run_whole(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
