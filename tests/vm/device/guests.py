"""Programs in a VM: the same results as on this machine, with an accelerator that only this machine has."""

import shutil

from catalog import catalog, clip
from harness.process import ROOT, Wrong
from machines import CUDA, GUEST_CACHE, HAS_CUDA, GuestPlace
from programs import difference

# Programs that nobody here wrote, and programs of ours.
QUICK = ("clinfo", "clpeak-latency", "hashcat-md5", "clblast-xaxpy", "vectors", "transfers", "mapping", "images", "programs", "callbacks",
         "errors", "includes", "threads", "svm")
CUDA_QUICK = ("vectors", "order")


def no_opencl_of_its_own(world):
    """What runs in there can only be the host's."""
    vm = world.one()
    icd = vm.expect("cat /etc/OpenCL/vendors/*").split()
    if icd != ["/usr/lib/aviary/opencl/libOpenCL.so.1"]:
        raise Wrong(f"OpenCL implementations in the guest: {icd}")
    found = vm.expect("find / -xdev \\( -name '*pocl*' -o -name '*libOpenCL*' -o -name '*LLVM*' -o -name '*.icd' \\) | sort").split()
    wanted = ["/etc/OpenCL/vendors/aviary.icd", "/usr/lib/aviary/opencl/libOpenCL.so.1"]
    # The loader, which finds implementations, and has none.
    if [path for path in found if path not in wanted and not path.startswith("/usr/lib/x86_64-linux-gnu/libOpenCL.so.1")]:
        raise Wrong(f"in the guest: {found}")


def opencl_programs(world):
    """Status and visible output of each program are those of a run on this machine."""
    vm = world.one()
    compare(world, vm, [p for p in catalog() if p.name in QUICK or (world.long and is_long(p))])
    vm.wait_until_nothing_is_left()


def ffmpeg(world):
    """It brings 240 MB of libraries: a VM of its own, and only with --long."""
    if not world.long or not shutil.which("ffmpeg"):
        return
    if "two" in world.vms:
        world.vms["two"].end()
    picture = clip(25)
    additions = ["--program", "ffmpeg", "--add", f"{picture}:{GUEST_CACHE}/{picture.name}"]
    vm = world.vm("two", "--memory", "3G", *additions).wait_for_boot()
    compare(world, vm, [p for p in catalog() if p.name in ("ffmpeg-avgblur", "ffmpeg-unsharp")])
    vm.end()


def compare(world, vm, programs):
    wrong = []
    for program in programs:
        if program.name.startswith("hashcat") and not shutil.which("hashcat"):
            continue
        # The first run compiles kernels, which both sides then find.
        for _ in range(2 if program.warm else 1):
            expected = program.run(world.native())
        outcome = program.run(GuestPlace(vm))
        here, there = program.visible(expected), program.visible(outcome)
        if expected.status and not program.suite:
            wrong.append(f"{program.name} fails on this machine: {expected.errors[-1000:]}")
        elif here != there:
            wrong.append(f"{program.name}:\n{difference(here, there)}\n{outcome.errors[-1000:]}")
        else:
            world.log(f"{program.name}: equal, {expected.seconds:.1f} s here, {outcome.seconds:.1f} s in the VM")
    if wrong:
        raise Wrong("\n".join(wrong))


def is_long(program):
    return program.kind == "own" or program.name == "clpeak"


def cuda_programs(world):
    """The driver of the reference, reached from a VM: the output of programs that use it directly."""
    if not HAS_CUDA:
        raise Wrong("the API is not built (./x setup)")
    vm = world.one()
    for name in (*CUDA_QUICK, "transfers", "errors", "runtime-static") if world.long else CUDA_QUICK:
        expected = (ROOT / f"apis/cuda/tests/expected/{name}.txt").read_text(encoding="utf-8")
        outcome = vm.run(f"EXPECT_SCRUBBED=1 exec /opt/cuda/{name} 2>&1", 240)
        if outcome.status or outcome.output != expected:
            raise Wrong(f"{CUDA / name}: status {outcome.status}\n{difference((0, expected), (outcome.status, outcome.output))}")
        world.log(f"{name}: equal, {outcome.seconds:.1f} s in the VM")


def apis_of_a_process_share_an_api_server(world):
    """As outside of a VM: what one library made is there for the other."""
    vm = world.one()
    vm.expect("mkfifo /tmp/open; sleep 600 >/tmp/open & echo $! >/tmp/sleeper; /opt/testapi/two_apis_cl </tmp/open >/tmp/two 2>&1 &")
    vm.expect("for i in $(seq 100); do grep -q attached /tmp/two && exit; sleep 0.1; done; cat /tmp/two; exit 1")
    sessions = world.sessions(vm="one", program="two_apis_cl")
    if sorted(s["api"] for s in sessions) != ["opencl", "testapi"] or len({s["server"] for s in sessions}) != 1:
        raise Wrong(f"sessions of one process: {sessions}")
    vm.expect("kill $(cat /tmp/sleeper); rm /tmp/open /tmp/sleeper /tmp/two")
    vm.wait_until_nothing_is_left()


