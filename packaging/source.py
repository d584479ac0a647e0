"""What the package aviary-dev has, with which `aviary spec build` works without a source tree and without a network: the runtime
crates, and the locked dependencies that they have on Linux on x86-64.
"""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Below the prefix; crates/lapis/src/build/source.rs looks there.
SOURCE, VENDOR, ID = "share/aviary/source", "share/aviary/vendor", "package-id"
TARGET = "x86_64-unknown-linux-gnu"
# The two crates that generated code depends on, and the one its build scripts do.
OF_GENERATED = ("guest", "server")
WORKSPACE = '[workspace]\nresolver = "3"\nmembers = ["guest", "server"]\n'
MANIFEST = """[package]
name = "runtime-{side}"
version = "0.0.0"
edition = "2024"

[lib]
path = "lib.rs"

[dependencies]
aviary-{side} = {{ path = "{root}/crates/{side}" }}

[build-dependencies]
cc = "1"
"""


class Failed(Exception):
    """A command's own words."""


def cargo(folder, *words):
    done = subprocess.run(("cargo", *words), cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"cargo {' '.join(map(str, words))}: {done.stderr[-2000:]}\ncargo fetch --locked fetches what is missing")
    return done.stdout


def generated_workspace(folder):
    """One that depends on what generated crates depend on, with the versions of the tree's lock file."""
    shutil.rmtree(folder, ignore_errors=True)
    for side in OF_GENERATED:
        (folder / side).mkdir(parents=True)
        (folder / side / "Cargo.toml").write_text(MANIFEST.format(side=side, root=ROOT), encoding="utf-8")
        (folder / side / "lib.rs").write_text("", encoding="utf-8")
    (folder / "Cargo.toml").write_text(WORKSPACE, encoding="utf-8")
    shutil.copyfile(ROOT / "Cargo.lock", folder / "Cargo.lock")
    # Leaves out of the lock file what these crates do not need.
    cargo(folder, "metadata", "--offline", "--format-version", "1")


def used(folder):
    """Packages that are compiled on Linux, as cargo describes them."""
    described = json.loads(cargo(folder, "metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", TARGET))
    resolved = {node["id"] for node in described["resolve"]["nodes"]}
    return [package for package in described["packages"] if package["id"] in resolved]


def empty(crate):
    """Leaves of a vendored crate what cargo reads of crates that it does not compile."""
    for path in crate.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("Cargo.toml", ".cargo-checksum.json"):
            path.unlink()
    found = re.search(r'^\[lib\]\n(?:.+\n)*?path = "(.+)"', (crate / "Cargo.toml").read_text(encoding="utf-8"), re.M)
    library = crate / (found.group(1) if found else "src/lib.rs")
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_text("", encoding="utf-8")
    checksums = json.loads((crate / ".cargo-checksum.json").read_text(encoding="utf-8"))
    checksums["files"] = {}
    (crate / ".cargo-checksum.json").write_text(json.dumps(checksums), encoding="utf-8")


def plain(folder):
    """Modes as in any checkout: what is executable in a crate's archive is nobody's program here. No file that version control reads
    is a file of the package; cargo must not look for those."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            path.chmod(0o644)
    for crate in folder.iterdir():
        hidden = [path for path in crate.rglob(".*") if path.is_file() and path.name != ".cargo-checksum.json"]
        checksums = json.loads((crate / ".cargo-checksum.json").read_text(encoding="utf-8"))
        for path in hidden:
            checksums["files"].pop(str(path.relative_to(crate)), None)
            path.unlink()
        (crate / ".cargo-checksum.json").write_text(json.dumps(checksums, sort_keys=True), encoding="utf-8")


def vendor(folder, target):
    cargo(folder, "vendor", "--offline", "--locked", "--versioned-dirs", target)
    kept = {f"{package['name']}-{package['version']}" for package in used(folder) if package["source"]}
    for crate in sorted(target.iterdir()):
        if crate.name not in kept:
            empty(crate)
    plain(target)


def crates(folder, target):
    """The workspace of the runtime crates, as version control has it, without tests."""
    own = sorted(Path(package["manifest_path"]).parent.name for package in used(folder) if package["name"].startswith("aviary-"))
    listed = subprocess.run(("git", "ls-files", "Cargo.toml", "Cargo.lock", *(f"crates/{name}" for name in own)), cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    for name in listed:
        parts = Path(name).parts
        if len(parts) > 3 and parts[2] in ("tests", "benches", "fuzz"):
            continue
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)


def content(folders):
    """A name of all files' content."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                total.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def lay_out(prefix, scratch):
    """Writes the source and its dependencies below `prefix`; `scratch` is a folder for what is needed meanwhile."""
    source, dependencies = prefix / SOURCE, prefix / VENDOR
    generated_workspace(scratch)
    crates(scratch, source)
    dependencies.parent.mkdir(parents=True, exist_ok=True)
    vendor(scratch, dependencies)
    (source / ID).write_text(f"{content((source, dependencies))}\n", encoding="utf-8")
    shutil.rmtree(scratch)
