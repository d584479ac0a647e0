"""The OCI images of `./x dist`: archives without a base image, made of the files of the packages.

aviary-guest has guest libraries alone, to be mounted or copied; aviary-node has the command, all APIs and the C library of the system
that packs (vendors' libraries are mounted); aviary-kubernetes has the kubelet plugin, a static program.
"""

import gzip
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import image

NODE_USER = "0:0"
NOBODY = "65534:65534"


def labels(name, description, version):
    about = {"title": name, "description": description, "version": version, "licenses": "Apache-2.0 OR MIT", "vendor": "The Aviary authors"}
    return {f"org.opencontainers.image.{key}": value for key, value in about.items()}


def system_libraries(program):
    """The loader and the libraries that a program asks for, by the places where it looks for them."""
    found = subprocess.run(("ldd", program), check=True, capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"(?:=> )?(/\S+) \(0x", found)))


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def plain_folders(root):
    """The mask of the process that packs does not get into an image."""
    for path in root.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def pack(root, target, number, seconds, about, entry, user):
    """`about`: name and description."""
    name, description = about
    root.chmod(0o755)
    plain_folders(root)
    archive = target / f"{name}-{number}.oci.tar"
    image.pack(root, f"localhost/{name}:{number}", archive, *entry, seconds=seconds, Labels=labels(name, description, number), User=user)
    shutil.rmtree(root)


def guest(stage, folder, target, number, seconds):
    root = folder / "guest"
    shutil.copytree(stage / "aviary-guest/lib/aviary", root / "opt/aviary", symlinks=True)
    pack(root, target, number, seconds, ("aviary-guest", "Guest libraries of Aviary's APIs, for a mount at /opt/aviary"), (), NOBODY)


def node(stage, folder, target, number, seconds):
    root = folder / "node"
    for package in ("aviary", "aviary-guest", "aviary-apis"):
        for part in ("bin", "lib"):
            if (stage / package / part).is_dir():
                shutil.copytree(stage / package / part, root / "usr" / part, symlinks=True, dirs_exist_ok=True)
    for library in system_libraries(stage / "aviary/bin/aviary"):
        copy(library, root / library.lstrip("/"))
    for name in ("tmp", "run", "var/lib/aviary", "etc/aviary"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/false\n", encoding="utf-8")
    entry = ("/usr/bin/aviary", "serve", "--listen", "unix:/run/aviary/node.sock")
    pack(root, target, number, seconds, ("aviary-node", "A node of Aviary, without vendors' libraries"), entry, NODE_USER)


def kubernetes(plugin, folder, target, number, seconds):
    root = folder / "kubernetes"
    copy(plugin, root / "usr/bin/aviary-kubelet-plugin")
    pack(root, target, number, seconds, ("aviary-kubernetes", "Aviary's kubelet plugin"), ("/usr/bin/aviary-kubelet-plugin",), NOBODY)


def images(stage, plugin, folder, target, about):
    """`about`: version and time."""
    folder.mkdir(parents=True, exist_ok=True)
    guest(stage, folder, target, *about)
    node(stage, folder, target, *about)
    if plugin.is_file():
        kubernetes(plugin, folder, target, *about)


def unpacked(archive, folder):
    """The root of an image, for tests."""
    with tarfile.open(archive) as packed:
        read = lambda name: packed.extractfile(name).read()
        blob = lambda about: read("blobs/sha256/" + about["digest"].removeprefix("sha256:"))
        manifest = json.loads(blob(json.loads(read("index.json"))["manifests"][0]))
        for about in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(about)))) as layer:
                layer.extractall(Path(folder))
        return json.loads(blob(manifest["config"]))
