#!/usr/bin/env python3
"""CUDA programs inside a VM whose host has an NVIDIA device: what they print there and on the host, and copies by size.

  bench/cuda_vm.py pack FOLDER          on a machine where ./x setup ran: everything that the other one needs
  bench/cuda_vm.py run FOLDER [--json FILE]
                                        on the machine with the device, which needs Python 3 only

A machine with a device often has no hypervisor and cannot get one, so QEMU travels, too.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VM = ROOT / "target/cache/vm"
CUDA_TESTS = ROOT / "target/cuda-tests"
# Of apis/cuda/tests: those that need no more than libcuda, and that NVIDIA's survives. runtime-static has what nvcc links by default.
PROGRAMS = ("vectors", "transfers", "matrices", "runtime-static")
LARGEST_MIB = 64
# Room for a buffer of the largest size, its copy and both once more, page-locked.
MEMORY = "2G"
LIMIT = 280


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", check=False, **options)
    if done.returncode:
        sys.exit(f"cuda_vm: {' '.join(map(str, command))}: status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


# --- pack ---

def pack(folder):
    folder.mkdir(parents=True, exist_ok=True)
    run([ROOT / "tests/vm/fetch"])
    run([ROOT / "apis/cuda/tests/build", CUDA_TESTS])
    programs = folder / "programs"
    shutil.rmtree(programs, ignore_errors=True)
    programs.mkdir()
    for name in PROGRAMS:
        shutil.copy(CUDA_TESTS / name, programs)
    run(["gcc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-isystem", ROOT / "target/cache/cuda-runtime/include",
         "-o", programs / "bandwidth", ROOT / "bench/cuda/bandwidth.c", f"-L{CUDA_TESTS}/driver", "-lcuda"])
    run(["strip", "-o", folder / "aviary", ROOT / "target/release/aviary"])
    shutil.copytree(ROOT / "target/aviary/cuda", folder / "apis/cuda", dirs_exist_ok=True)
    driver = run([ROOT / "tests/vm/driver"]).strip()
    command = [folder / "aviary", "guest", "image", "--kernel", VM / "vmlinuz", "--modules", VM / "modules", "--busybox", VM / "busybox",
               "--driver", driver, "--api-dir", folder / "apis", "--api", "cuda", "-o", folder / "image"]
    for program in sorted(programs.iterdir()):
        command += ["--add", f"{program}:/opt/cuda/{program.name}"]
    # A program of which this machine has all libraries brings the C library along.
    run([*command, "--program", "/bin/true"])
    print(f"{folder}: {pack_qemu(folder)} files of QEMU")


def pack_qemu(folder):
    """Copies what QEMU opens while it starts a VM; all of it would be twice as much."""
    qemu, target = VM / "qemu", folder / "qemu"
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace"
        run(["strace", "-f", "-e", "trace=openat,open,execve,access,newfstatat,readlink", "-o", trace, folder / "aviary", "vm", "run",
             "--accel", "tcg", "--qemu", qemu / "run", "--image", folder / "image", "--console", f"{scratch}/console", "--", "true"],
            timeout=LIMIT)
        seen = set(re.findall(rf'"({re.escape(str(qemu))}/[^"]+)"', trace.read_text(encoding="utf-8")))
    shutil.rmtree(target, ignore_errors=True)
    files = [Path(name) for name in seen | {str(qemu / "run")} if Path(name).is_file()]
    for file in files:
        copy = target / file.relative_to(qemu)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return len(files)


# --- run ---

@contextlib.contextmanager
def node(folder, scratch):
    socket = scratch / "device.sock"
    command = [folder / "aviary", "serve", "--api-dir", folder / "apis", "--listen", f"unix:{scratch}/node.sock", "--vm", f"bench={socket}"]
    with open(scratch / "node.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"cuda_vm: the node does not start: {(scratch / 'node.log').read_text(encoding='utf-8')}")
            time.sleep(0.02)
        yield socket
    finally:
        process.terminate()
        process.wait(20)


def in_guest(folder, socket, scratch, script):
    """Output of a shell command in a VM of its own, and its status."""
    command = [folder / "aviary", "vm", "run", "--qemu", folder / "qemu/run", "--image", folder / "image", "--socket", socket,
               "--memory", MEMORY, "--cpus", "2", "--console", scratch / "console", "--", "sh", "-c", script]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False)
    if done.returncode:
        words = [path.read_text(errors="replace")[-1500:] for path in (scratch / "console", scratch / "node.log") if path.exists()]
        print(f"in the VM: {script}: status {done.returncode}\n{done.stderr[-2000:]}\n" + "\n".join(words), flush=True)
    return done.stdout, done.returncode


def on_host(program, *arguments):
    return run([program, *arguments], env={**os.environ, "EXPECT_SCRUBBED": "1"}, timeout=LIMIT)


def rates(output):
    """`KIND SIZE RATE` lines as {KIND_SIZE: RATE}."""
    words = [line.split() for line in output.splitlines()]
    return {f"{kind}_{size}K": float(rate) for kind, size, rate in words}


def measure(folder, figures):
    # How the VM runs decides what its times mean.
    printed = run([folder / "aviary", "vm", "run", "--qemu", folder / "qemu/run", "--print"])
    accelerator = "KVM" if "-accel kvm" in printed else "TCG"
    print(f"the VM runs with {accelerator}")
    figures["cuda.vm.kvm"] = float(accelerator == "KVM")
    different = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with node(folder, scratch) as socket:
            # One VM for all of it: what each prints is between marks.
            script = "export EXPECT_SCRUBBED=1; ulimit -l unlimited; ls -l /dev/nvidia* 2>&1; "
            script += "".join(f"echo @{name}; /opt/cuda/{name} 2>&1; echo @status $?; " for name in PROGRAMS)
            script += f"echo @bandwidth; /opt/cuda/bandwidth {LARGEST_MIB}; echo @status $?"
            output, status = in_guest(folder, socket, scratch, script)
        figures["cuda.vm.status"] = status
        head, *parts = re.split(r"^@(?!status)", output, flags=re.M)
        print(f"NVIDIA devices in the VM: {head.strip()}")
        outputs = {part.split("\n", 1)[0]: part.split("\n", 1)[1].split("@status ") for part in parts}
        for name in PROGRAMS:
            text, code = outputs.get(name, ["", "none"])
            same = code.strip() == "0" and text == on_host(folder / "programs" / name)
            different += not same
            print(f"{name:20} {'equal' if same else 'DIFFERENT'}" + ("" if same else f" (status {code.strip()})\n{text[-800:]}"), flush=True)
        text, code = outputs.get("bandwidth", ["", "none"])
        if code.strip() != "0":
            different += 1
            print(f"bandwidth: status {code.strip()}: {text[-800:]}")
            return different
    guest, host = rates(text), rates(on_host(folder / "programs/bandwidth", LARGEST_MIB))
    print(f"{'GB/s':24} {'host':>10} {'VM (' + accelerator + ')':>10}")
    for name, rate in host.items():
        figures |= {f"cuda.vm.{name}.native": rate, f"cuda.vm.{name}.aviary": guest[name]}
        print(f"{name:24} {rate:10.2f} {guest[name]:10.2f}", flush=True)
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("pack", "run"))
    parser.add_argument("folder", type=lambda name: Path(name).resolve())
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "pack":
        pack(arguments.folder)
        return 0
    figures = {}
    figures["cuda.vm.different"] = measure(arguments.folder, figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if figures["cuda.vm.different"] else 0


sys.exit(main())
