"""What is compiled into the packages: a bill of materials (CycloneDX 1.6) of the Rust crates, one of the Go modules, and the texts of
their licenses.
"""

import base64
import json
import re
import subprocess
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
# Crates whose dependencies are in the programs and libraries that are packed.
PACKED = ("aviary", "aviary-heap", "aviary-smi", "aviary-guest", "aviary-server")
LICENSE_FILES = ("LICENSE*", "LICENCE*", "COPYING*", "COPYRIGHT*", "NOTICE*", "license*", "UNLICENSE*")
# An identifier that is the same for the same version of the same thing.
NAMESPACE = uuid.UUID("6f1d4a8e-6f0c-5b0e-9a55-2f6f0b2f7c11")


def crates():
    """The packages as cargo describes them, by id, and the ids that each depends on in what is packed."""
    command = ("cargo", "metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", TARGET)
    described = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    packages = {package["id"]: package for package in described["packages"]}
    needs = {node["id"]: sorted(dependency["pkg"] for dependency in node["deps"] if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]))
             for node in described["resolve"]["nodes"]}
    reached, waiting = set(), [key for key, package in packages.items() if package["name"] in PACKED and package["source"] is None]
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting += needs[key]
    order = sorted(reached, key=lambda key: (packages[key]["name"], packages[key]["version"]))
    return [packages[key] for key in order], {key: needs[key] for key in order}


def component(kind, name, version, purl, license_expression=None, digest=None):
    about = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if license_expression:
        about["licenses"] = [{"expression": license_expression.replace("/", " OR ")}]
    if digest:
        about["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return about


def bill(name, version, components, dependencies):
    purl = f"pkg:generic/{name}@{version}"
    text = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, json.dumps(components, sort_keys=True))}",
        "version": 1, "metadata": {"component": component("application", name, version, purl, "Apache-2.0 OR MIT")},
        "components": components, "dependencies": dependencies,
    }
    return json.dumps(text, indent=1, sort_keys=True) + "\n"


def rust_bill(version):
    packages, needs = crates()
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    digests = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    purls = {package["id"]: f"pkg:cargo/{package['name']}@{package['version']}" for package in packages}
    components = [component("library", package["name"], package["version"], purls[package["id"]], package["license"],
                            digests.get((package["name"], package["version"]))) for package in packages]
    dependencies = [{"ref": purls[key], "dependsOn": sorted({purls[other] for other in others})} for key, others in needs.items()]
    return bill("aviary", version, components, dependencies)


def go_bill(version, program):
    """Of what the program says of itself: the modules that are in it, with the sums of their content."""
    found = subprocess.run(("go", "version", "-m", program), check=True, capture_output=True, text=True).stdout
    modules = sorted(re.findall(r"^\tdep\t(\S+)\t(\S+)\th1:(\S+)$", found, re.M))
    components = [component("library", name, number, f"pkg:golang/{name}@{number}", None, base64.b64decode(digest).hex())
                  for name, number, digest in modules]
    return bill("aviary-kubelet-plugin", version, components, [])


def licenses():
    """Each text once, with the crates that it is about."""
    packages, texts = crates()[0], {}
    for package in packages:
        if package["source"] is None:
            continue
        folder = Path(package["manifest_path"]).parent
        files = sorted({path for pattern in LICENSE_FILES for path in folder.glob(pattern) if path.is_file()})
        name = f"{package['name']} {package['version']} ({package['license']})"
        for path in files:
            texts.setdefault(path.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
        if not files:
            texts.setdefault(f"Its archive has no text; it is licensed as {package['license']}.", []).append(name)
    parts = [f"{', '.join(sorted(set(names)))}\n\n{text}\n" for text, names in texts.items()]
    return "Licenses of what is compiled into the programs and libraries of this package.\n\n" + f"\n{'-' * 80}\n\n".join(sorted(parts))
