#!/usr/bin/env python3
"""./x dist: packs what is built. Writes a tarball, Debian packages and a wheel into target/dist.

The same build gives the same bytes: names are sorted, times are SOURCE_DATE_EPOCH (by default that of the last commit), owners are
root. Nothing that is packed names the folder of this source tree; a file that does is an error.
"""

import argparse
import base64
import ctypes
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import dependencies
import oci
import optional
import source

ROOT = Path(__file__).resolve().parent.parent
# Programs and APIs: linked for systems with an older C library, or as the tree's own tests use them.
PORTABLE = (ROOT / "target/portable/cargo/release", ROOT / "target/portable/apis")
AS_BUILT = (ROOT / "target/release", ROOT / "target/aviary")
PLUGIN = ROOT / "target/portable/kubernetes/aviary-kubelet-plugin"
# The newest glibc that a packed file may ask for, see cc-old-glibc.
GLIBC = (2, 17)
# A library of tests.
NOT_PACKED = {"testapi"}
# What everybody installs, and what is in the tarball and the wheel.
PACKAGES = ("aviary", "aviary-apis", "aviary-guest")
# Debian packages that ask for more than an accelerator: in a folder of their own beside the others.
OPTIONAL = ("aviary-dev", "aviary-kubernetes", "aviary-vm")
# Where the Debian packages have the folders of the APIs.
INSTALLED = "/usr/lib/aviary"
# Files of an API's build that a node needs; programs need all others.
OF_NODE = {"server.so", "modules", "policy.o"}
# Of a build alone.
LEFT_OUT = {"gen", "compile_commands.json"}


def die(text):
    sys.exit(f"dist: {text}")


def say(step):
    """All of it takes a minute or two."""
    print(f"dist: {step}", file=sys.stderr, flush=True)


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def run(*command, **options):
    done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    if done.returncode != 0:
        die(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def version():
    found = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M).group(1)
    packaged = (ROOT / "packaging/debian/changelog").read_text(encoding="utf-8").split("(", 1)[1].split(")")[0]
    if packaged != found:
        die(f"packaging/debian/changelog is about {packaged}, Cargo.toml about {found}: add an entry")
    return found


def epoch():
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or output("git", "log", "-1", "--format=%ct", cwd=ROOT))


def apis(builds, may_lack):
    """The folders of what is packed, by name. `may_lack`: what is not there is said and left out."""
    specified = {path.parent.name for path in ROOT.glob("apis/*/*.lapis") if re.search(r"^\s*api\(", path.read_text(encoding="utf-8"), re.M)}
    built = {path.parent.name: path.parent for path in sorted(builds.glob("*/api.json"))}
    if lacking := ", ".join(sorted(specified - NOT_PACKED - built.keys())):
        if not may_lack:
            die(f"not built: {lacking}; why is said above, where it was tried")
        print(f"dist: warning: not built and not packed: {lacking}", file=sys.stderr)
    return {name: folder for name, folder in built.items() if name in specified - NOT_PACKED}


class Layout:
    """Files below a prefix (`/usr`, or the tarball's folder), by the package that they are in."""

    def __init__(self, stage):
        self.stage = stage
        shutil.rmtree(stage, ignore_errors=True)

    def place(self, package, path):
        target = self.stage / package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def text(self, package, path, text):
        self.place(package, path).write_text(text, encoding="utf-8")

    def copy(self, package, source, path):
        shutil.copyfile(source, self.place(package, path))

    def code(self, package, source, path):
        """A program or library, without what only debuggers read."""
        target = self.place(package, path)
        run("strip", "--strip-unneeded", "--remove-section=.comment", "-o", target, source)
        target.chmod(0o755)


def lay_out_api(layout, name, folder):
    """`modules/HASH.so` of this build is the same file as `server.so`; those of earlier builds serve nobody who installs."""
    library = json.loads((folder / "api.json").read_text(encoding="utf-8"))["library"]
    written = {step["file"]["path"].split("/")[0] for step in description_launch(folder) if "file" in step}
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_OUT | written:
            continue
        target = f"lib/aviary/{name}/{path.name}"
        package = "aviary-apis" if path.name in OF_NODE else "aviary-guest"
        if path.name in ("server.so", library):
            layout.code(package, path, target)
        elif path.name == "modules":
            same = [kept for kept in sorted(path.iterdir()) if kept.read_bytes() == (folder / "server.so").read_bytes()]
            for kept in same:
                layout.place(package, f"{target}/{kept.name}").symlink_to("../server.so")
            if not same:
                die(f"{path} has not the module {folder / 'server.so'}: build {name} again")
        elif path.is_file():
            layout.copy(package, path, target)
        else:
            die(f"{path}: what is this? Neither a file of the specification nor one of the build")


def description_launch(folder):
    return json.loads((folder / "api.json").read_text(encoding="utf-8"))["launch"]


def installed_files(layout, prefix, names):
    """The files that `aviary run` writes for a program where they do not name their folder: in packages they do."""
    for name, folder in names.items():
        library = json.loads((folder / "api.json").read_text(encoding="utf-8"))["library"]
        for step in description_launch(folder):
            if "file" in step:
                place = f"{INSTALLED}/{name}"
                text = step["file"]["content"].replace("{dir}", place).replace("{library}", f"{place}/{library}")
                layout.text("aviary-guest", f"{prefix}lib/aviary/{name}/{step['file']['path']}", text)


def node_toml(program):
    """The example of `aviary serve --help`, commented out: a test checks that it has every key."""
    text = output(program, "serve", "--help")
    example = text.split("Configuration file (TOML", 1)[1].split("\n", 1)[1].split("\n\n", 1)[0]
    lines = [line.removeprefix("  ") for line in example.splitlines()]
    head = "# The node of this machine: aviary serve --config (docs: aviary-serve(1)). All is commented out; [...] is the default.\n\n"
    return head + "".join(f"#{line}\n" for line in lines)


def lay_out(stage, release, names):
    layout = Layout(stage)
    program = layout.place("aviary", "bin/aviary")
    layout.code("aviary", release / "aviary", "bin/aviary")
    layout.code("aviary", release / "libaviary_heap.so", "lib/aviary/libaviary_heap.so")
    layout.code("aviary-guest", release / "nvidia-smi", "lib/aviary/nvidia-smi")
    for name, folder in names.items():
        lay_out_api(layout, name, folder)
    run(program, "man", layout.place("aviary", "share/man/man1/x").parent)
    for shell, path in (("bash", "bash-completion/completions/aviary"), ("zsh", "zsh/vendor-completions/_aviary"),
                        ("fish", "fish/vendor_completions.d/aviary.fish")):
        layout.text("aviary", f"share/{path}", output(program, "completions", shell))
    for source in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))):
        layout.copy("aviary", source, f"share/doc/aviary/{source.relative_to(ROOT)}")
    layout.text("aviary", "share/doc/aviary/LICENSES-OF-DEPENDENCIES", dependencies.licenses())
    return layout


def naming(folder, place):
    """Files below a folder that name something below `place`. Of a short one (`/src`) the end of another path is not it."""
    name = re.escape(f"{place}/".encode())
    pattern = re.compile(name if len(Path(place).parts) > 2 else rb"(?<![\w.-])" + name)
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(folder)) for path in files if pattern.search(path.read_bytes())]


def check(folder):
    """No file names the source tree."""
    found = naming(folder, ROOT)
    if found:
        die(f"{', '.join(found)}: names the folder {ROOT} in which it was built")


def needs_of(path):
    """What a program or library asks of the system, if it may not: versions of glibc above GLIBC, libgcc_s."""
    asked = output("objdump", "-p", path)
    newer = sorted({name for name in re.findall(r"\bGLIBC_([\d.]+)", asked) if tuple(map(int, name.split("."))) > GLIBC})
    return [f"GLIBC_{name}" for name in newer] + re.findall(r"NEEDED\s+(libgcc_s\S*)", asked)


def check_needs(folder):
    code = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF")
    for path in code:
        # A policy is code for the kernel.
        if path.name != "policy.o" and (needs := needs_of(path)):
            die(f"{path.relative_to(folder)} asks for {', '.join(needs)}: systems with glibc {GLIBC[0]}.{GLIBC[1]} do not have that")


# --- the tarball ---

def archive(folders, top, seconds):
    """One tar of several folders' files under `top`, sorted."""
    found = {path.relative_to(folder): path for folder in folders for path in folder.rglob("*")}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in sorted(found.items(), key=lambda item: item[0].parts):
            about = tar.gettarinfo(path, arcname=f"{top}/{name}")
            about.uid = about.gid = 0
            about.uname = about.gname = "root"
            about.mtime = seconds
            about.mode = 0o755 if about.isdir() or about.mode & 0o100 else 0o644
            with path.open("rb") if about.isreg() else io.BytesIO() as content:
                tar.addfile(about, content if about.isreg() else None)
    return buffer.getvalue()


def zstd(data, level):
    library = ctypes.CDLL("libzstd.so.1")
    for name, arguments in (("ZSTD_compressBound", [ctypes.c_size_t]), ("ZSTD_isError", [ctypes.c_size_t]),
                            ("ZSTD_compress", [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int])):
        getattr(library, name).restype, getattr(library, name).argtypes = ctypes.c_size_t, arguments
    room = ctypes.create_string_buffer(library.ZSTD_compressBound(len(data)))
    length = library.ZSTD_compress(room, len(room), data, len(data), level)
    if library.ZSTD_isError(length):
        die("zstd failed")
    return room.raw[:length]


def tarball(layout, seconds, level, target):
    top = target.name.split(".tar")[0]
    for name in ("LICENSE", "LICENSE-APACHE", "LICENSE-MIT"):
        layout.copy("aviary", ROOT / name, name)
    layout.copy("aviary", ROOT / "packaging/debian/aviary.service", "share/aviary/aviary.service")
    layout.text("aviary", "share/aviary/node.toml", node_toml(layout.place("aviary", "bin/aviary")))
    target.write_bytes(zstd(archive([layout.stage / package for package in PACKAGES], top, seconds), level))


# --- the wheel ---

# The name `aviary` is another project's.
WHEEL_NAME = "aviary-accel"
WHEEL_SUMMARY = "Use an accelerator that a process, container or machine does not own"
# Where pip puts files of a wheel: programs, and what is in `lib` beside their folder.
WHEEL_SCHEMES = {"bin": "scripts", "lib": "data/lib"}


def wheel_files(layout, number):
    """Content and mode by the path in the wheel. It has no links: `modules` are for builds that replace others, which pip's do not."""
    data = f"{WHEEL_NAME.replace('-', '_')}-{number}.data"
    for package in PACKAGES:
        for path in sorted((layout.stage / package).rglob("*")):
            top, *rest = path.relative_to(layout.stage / package).parts
            if path.is_file() and not path.is_symlink() and top in WHEEL_SCHEMES:
                # pip makes scripts executable; of other files it keeps whether the archive says so.
                yield f"{data}/{WHEEL_SCHEMES[top]}/{'/'.join(rest)}", path.read_bytes(), path.stat().st_mode & 0o777


def wheel(layout, number, seconds, level, tag, target):
    information = f"{WHEEL_NAME.replace('-', '_')}-{number}.dist-info"
    files = list(wheel_files(layout, number))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    metadata = f"Metadata-Version: 2.1\nName: {WHEEL_NAME}\nVersion: {number}\nSummary: {WHEEL_SUMMARY}\nRequires-Python: >=3.7\n"
    texts = {"METADATA": f"{metadata}Description-Content-Type: text/markdown\n\n{readme}",
             "WHEEL": f"Wheel-Version: 1.0\nGenerator: aviary\nRoot-Is-Purelib: false\nTag: {tag}\n"}
    for name in ("LICENSE", "LICENSE-APACHE", "LICENSE-MIT"):
        texts[f"licenses/{name}"] = (ROOT / name).read_text(encoding="utf-8")
    files += [(f"{information}/{name}", text.encode(), 0o644) for name, text in texts.items()]
    digest = lambda content: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = [f"{name},sha256={digest(content)},{len(content)}\n" for name, content, _ in files]
    record.append(f"{information}/RECORD,,\n")
    files.append((f"{information}/RECORD", "".join(record).encode(), 0o644))
    # A zip has no years before 1980.
    moment = time.gmtime(max(seconds, 315532800))[:6]
    with zipfile.ZipFile(target / f"{WHEEL_NAME.replace('-', '_')}-{number}-{tag}.whl", "w") as packed:
        for name, content, mode in files:
            about = zipfile.ZipInfo(name, moment)
            about.external_attr = (0o100000 | mode) << 16
            packed.writestr(about, content, zipfile.ZIP_DEFLATED, level)


# --- the Debian packages ---

def debian(layout, names, number, seconds, options, plugin, target):
    """debhelper makes them of stage/PACKAGE: what `layout` has below /usr."""
    build = layout.stage.parent / "debian"
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(ROOT / "packaging/debian", build / "debian")
    staged = Layout(build / "stage")
    for package in PACKAGES:
        shutil.copytree(layout.stage / package, build / "stage" / package / "usr", symlinks=True)
    installed_files(staged, "usr/", names)
    lay_out_source(build / "stage/aviary-dev/usr", build / "scratch")
    optional.units(build / "debian")
    optional.smi(build / "stage")
    optional.vm(build / "stage", number)
    left_out = lay_out_kubernetes(build / "stage", plugin)
    for path in (build / "debian").glob("aviary-vm.p*"):
        path.write_text(path.read_text(encoding="utf-8").replace("@VERSION@", number), encoding="utf-8")
    staged.text("aviary", "etc/aviary/node.toml", node_toml(layout.place("aviary", "bin/aviary")))
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(seconds), "PACK": options, "LEFT_OUT": left_out, "LC_ALL": "C.UTF-8", "DH_INTERNAL_OPTIONS": ""}
    # dpkg-deb keeps a time before SOURCE_DATE_EPOCH: that of the checkout.
    for path in build.rglob("*"):
        os.utime(path, (seconds, seconds), follow_symlinks=False)
    run("debian/rules", "binary", cwd=build, env=environment)
    check(build / "debian")
    (target / "optional").mkdir(exist_ok=True)
    for path in sorted(build.parent.glob("*.deb")):
        path.replace(target / ("optional" if path.name.split("_")[0] in OPTIONAL else ".") / path.name)


def lay_out_kubernetes(stage, plugin):
    """Returns debhelper's option for a package that is left out."""
    if not plugin.is_file():
        print("dist: warning: the kubelet plugin is not built and not packed (Go 1.26 is needed)", file=sys.stderr)
        return "-Naviary-kubernetes"
    optional.kubernetes(stage, plugin)
    return ""


def lay_out_source(prefix, scratch):
    try:
        source.lay_out(prefix, scratch)
    except source.Failed as failed:
        die(failed)


# --- what there is, and what it is made of ---

def bills(number, target):
    (target / f"aviary-{number}.cdx.json").write_text(dependencies.rust_bill(number), encoding="utf-8")
    if PLUGIN.is_file():
        (target / f"aviary-kubernetes-{number}.cdx.json").write_text(dependencies.go_bill(number, PLUGIN), encoding="utf-8")


def sums(target, sign_with):
    """Of all files; `sha256sum -c SHA256SUMS` compares them. No key is in the source tree."""
    listed = sorted(path for path in target.rglob("*") if path.is_file() and not path.name.startswith("SHA256SUMS"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(target)}\n" for path in listed]
    (target / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    if sign_with:
        run(sign_with, target / "SHA256SUMS")


def main():
    parser = argparse.ArgumentParser(prog="./x dist", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "target/dist", metavar="DIR")
    parser.add_argument("--only", choices=("tarball", "debian", "wheel", "images"), help="only these")
    parser.add_argument("--sign-with", type=Path, metavar="PROGRAM", help="called with the path of SHA256SUMS when all is packed; it writes its signature beside it")
    parser.add_argument("--fast", action="store_true", help="compress little, for tests")
    parser.add_argument("--as-built", action="store_true", help="pack target/release and target/aviary, for this system alone; for tests")
    arguments = parser.parse_args()
    release, builds = AS_BUILT if arguments.as_built else PORTABLE
    number, seconds, names = version(), epoch(), apis(builds, arguments.as_built)
    target = arguments.output.resolve()
    (target / "build").mkdir(parents=True, exist_ok=True)
    if arguments.only is None:
        for path in [*target.glob("aviary*"), *target.glob("optional/aviary*"), *target.glob("SHA256SUMS*")]:
            path.unlink()
    say(f"laying out the command and {len(names)} APIs")
    layout = lay_out(target / "build/stage", release, names)
    check(layout.stage)
    if not arguments.as_built:
        check_needs(layout.stage)
    if arguments.only in (None, "wheel"):
        say("packing the wheel")
        systems = "linux" if arguments.as_built else f"manylinux_{GLIBC[0]}_{GLIBC[1]}"
        wheel(layout, number, seconds, 1 if arguments.fast else 9, f"py3-none-{systems}_x86_64", target)
    if arguments.only in (None, "debian"):
        if not shutil.which("dh"):
            die("debhelper is needed: apt-get install debhelper")
        say("packing the Debian packages")
        debian(layout, names, number, seconds, "-Zgzip -z1" if arguments.fast else "-Zxz -z9", PLUGIN, target)
    if arguments.only in (None, "tarball"):
        say("packing the tarball")
        tarball(layout, seconds, 1 if arguments.fast else 19, target / f"aviary-{number}-linux-x86_64.tar.zst")
    if arguments.only in (None, "images"):
        say("packing the images")
        oci.images(layout.stage, PLUGIN, target / "build/images", target, (number, seconds))
    shutil.rmtree(target / "build")
    if arguments.only is None:
        say("listing what it is made of")
        bills(number, target)
        sums(target, arguments.sign_with)
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        print(f"{path.stat().st_size:10,}  {path}")


if __name__ == "__main__":
    main()
