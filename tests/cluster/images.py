"""Images of the cluster, made of this machine's files: no registry has a part in them."""

import shutil
import subprocess
import sys
from pathlib import Path

from harness.process import ROOT, run

HERE = Path(__file__).resolve().parent
CACHE = ROOT / "target/cache/cluster"
# Programs of apis/cuda/tests, which print what is expected there.
CUDA_PROGRAMS = ("arithmetic", "contexts", "errors", "matrices", "transfers", "vectors")
# The client: a loader of OpenCL, and no vendor's library.
PROGRAMS = ("/usr/bin/clinfo", "/usr/bin/env", "/usr/bin/cat")


def libraries(program, environment=None):
    """What a program loads, by ldd."""
    told = run(["ldd", program], env=environment)
    return [word for line in told.splitlines() for word in line.split() if word.startswith("/")]


def lay(folder, source, target=None):
    place = folder / (target or str(source)).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(source).resolve(), place)
    return place


def busybox(folder):
    lay(folder, CACHE / "root/bin/busybox" if (CACHE / "root/bin/busybox").exists() else CACHE / "root/usr/bin/busybox", "/bin/busybox")
    for name in ("sh", "sleep", "ls", "ip", "grep", "find", "id", "stat", "test", "ps", "nc", "unshare"):
        (folder / "bin" / name).symlink_to("busybox")


def pause(folder):
    busybox(folder)
    return ("/bin/sleep", "infinity")


def build_cuda(built):
    """The reference driver, which n1 has, and programs that need a driver."""
    runtime = ROOT / "target/cache/cuda-runtime"
    if not (runtime / "include/cuda.h").exists():
        run([ROOT / "apis/cuda/tests/fetch-runtime"])
    run(["env", f"CUDA_INCLUDE={runtime}/include", ROOT / "apis/cuda/refdriver/build", built / "cuda"])
    flags = ("-std=gnu11", "-O1", "-pthread", "-isystem", runtime / "include")
    for name in CUDA_PROGRAMS:
        source = ROOT / f"apis/cuda/tests/driver/{name}.c"
        run(["gcc", *flags, "-o", built / name, source, f"-L{built}/cuda", "-lcuda", "-lm"])
    return [built / name for name in CUDA_PROGRAMS]


def client(folder):
    """Programs that use OpenCL and the test API, as they come."""
    busybox(folder)
    built = folder.parent / "programs"
    run(["sh", ROOT / "apis/testapi/build", built])
    run(["gcc", "-O2", "-Wall", "-Werror", "-o", built / "compute", HERE / "compute.c", "-lOpenCL"])
    for program in build_cuda(built):
        lay(folder, program, f"/usr/bin/{program.name}")
    own = {"LD_LIBRARY_PATH": f"{built}:{built}/cuda"}
    for program in ("accelerate", "hold"):
        lay(folder, built / program, f"/usr/bin/{program}")
    lay(folder, built / "compute", "/usr/bin/compute")
    for program in PROGRAMS:
        lay(folder, program)
    # Guest libraries as this tree builds them need it; those of the packages do not.
    lay(folder, run(["gcc", "-print-file-name=libgcc_s.so.1"]).strip(), "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1")
    for program in (*PROGRAMS, built / "compute", built / "accelerate", built / "arithmetic"):
        for library in libraries(program, own):
            if not library.startswith(str(built)):
                # Where the dynamic linker of Debian looks; it has no list of libraries here.
                lay(folder, library, library if "ld-linux" in library else f"/usr/lib/x86_64-linux-gnu/{Path(library).name}")
    (folder / "tmp").mkdir()
    return ("/bin/sh",)


def plugin(folder):
    lay(folder, CACHE / "aviary-kubelet-plugin", "/aviary-kubelet-plugin").chmod(0o755)
    return ("/aviary-kubelet-plugin",)


IMAGES = {"pause": pause, "client": client, "aviary-kubernetes": plugin}


def make(folder):
    """Archives of all images, by name."""
    folder.mkdir()
    archives = []
    for name, fill in IMAGES.items():
        root = folder / name
        root.mkdir()
        entry = fill(root)
        archive = folder / f"{name}.tar"
        subprocess.run([sys.executable, ROOT / "packaging/image.py", root, f"localhost/{name}:1", archive, *entry], check=True)
        shutil.rmtree(root)
        archives.append(archive)
    return archives
