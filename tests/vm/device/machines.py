"""Virtual machines under test, the image that they boot, and the node that serves them."""

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness.node import Node
from harness.process import AVIARY, HANG, ROOT, Wrong, children, descriptors, wait_until

HERE = Path(__file__).resolve().parent
# OpenCL's programs run in VMs, too: where they are and what makes two runs equal is known there.
sys.path.append(str(ROOT / "apis/opencl/tests"))
sys.dont_write_bytecode = True

from runtimes import CACHE, Outcome, Place, compile_c  # noqa: E402

# One start of a VM usually takes 4 s; a busy machine has been seen to take 47.
BOOT = 180
# So many looks in a row find the same descriptors open before they count as those that stay.
STEADY_LOOKS = 30
FETCHED = ROOT / "target/cache/vm"
CUDA = ROOT / "target/cuda-tests"
HAS_CUDA = (ROOT / "target/aviary/cuda/libcuda.so.1").exists()
# In a guest: what is in CACHE here.
GUEST_CACHE = "/opt/cache"
OPENCL = f"{GUEST_CACHE}/opencl-programs"
TENANTS = {"one": "alice", "two": "two"}
# On the device; and, for the test of limits, bytes of its memory.
WEIGHTS = {"one": 1, "two": 2}
MEMORY = {"one": 900_017, "two": 500_003}


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))}: status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def is_newer(result, *sources):
    files = [path for source in sources for path in source.rglob("*") if path.is_file()]
    return result.exists() and result.stat().st_mtime > max(path.stat().st_mtime for path in files)


class Image:
    """The programs of the tests, built; and the image for guests with them."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.testapi = self.directory / "testapi"
        self.folder = self.directory / "image"

    def build(self):
        run(["sh", ROOT / "apis/testapi/build", self.testapi])
        if HAS_CUDA and not is_newer(CUDA / "vectors", ROOT / "apis/cuda/refdriver", ROOT / "apis/cuda/tests"):
            run([ROOT / "apis/cuda/tests/build", CUDA])
        for source in HERE.glob("*.c"):
            libraries = ["-lOpenCL"] if source.stem.endswith("_cl") else ["-L", self.testapi, "-ltestapi"]
            include = ["-I", ROOT / "apis/testapi/include"]
            warnings = ["-Wall", "-Wextra", "-Werror"]
            run(["gcc", "-O2", *warnings, *include, "-o", self.testapi / source.stem, source, *libraries, "-lpthread"])
        own = [compile_c(source, CACHE / "opencl-programs") for source in (ROOT / "apis/opencl/tests/programs").glob("*.c")]
        own.append(compile_c(ROOT / "apis/opencl/tests/quota.c", CACHE / "opencl-programs"))
        driver = run([ROOT / "tests/vm/driver"]).strip()
        command = [AVIARY, "guest", "image", "--kernel", FETCHED / "vmlinuz", "--modules", FETCHED / "modules",
                   "--busybox", FETCHED / "busybox", "--driver", driver, "-o", self.folder]
        for api in ("opencl", "testapi", *(("cuda",) if HAS_CUDA else ())):
            command += ["--api", api]
        # The loader for OpenCL comes with clinfo.
        for program in ("clinfo", "clpeak", "clblast_test_xaxpy", "strace"):
            command += ["--program", program]
        for program in ("runtime-static", "vectors", "order", "transfers", "errors") if HAS_CUDA else ():
            command += ["--add", f"{CUDA / program}:/opt/cuda/{Path(program).name}"]
        for program in self.testapi.iterdir():
            if "." not in program.name:
                command += ["--add", f"{program}:/opt/testapi/{program.name}"]
        for program in own:
            command += ["--add", f"{program}:{OPENCL}/{program.name}"]
        run(command)


def hashcat_additions():
    """What hashcat reads to search for MD5: all of its modules would not fit into a small VM."""
    shared, modules = Path("/usr/share/hashcat"), Path("/usr/lib/hashcat/modules")
    chosen = [path for path in (shared / "OpenCL").iterdir() if path.name.startswith(("inc_", "m00000_", "m00400-", "amp_", "markov_", "shared"))]
    chosen += [path for path in (shared / "hashcat.hcstat2", shared / "hashcat.hctune", shared / "tunings") if path.exists()]
    arguments = ["--program", "hashcat", "--add", f"{modules}/module_00000.so:{shared}/modules/module_00000.so"]
    for path in chosen:
        arguments += ["--add", f"{path}:{path}"]
    return arguments


class Vm:
    """A VM with a shell that does what it is told."""

    def __init__(self, world, name, *options):
        self.name, self.world = name, world
        self.console, self.errors = world.directory / f"console-{name}", world.directory / f"errors-{name}"
        self.monitor = world.directory / f"monitor-{name}-{time.monotonic_ns()}"
        self.commands, self.lines = 0, queue.Queue()
        command = [AVIARY, "vm", "run", "--image", world.image.folder, "--socket", world.socket(name), "--console", self.console,
                   "--qemu-arg=-qmp", f"--qemu-arg=unix:{self.monitor},server=on,wait=off", *options, "--", "sh"]
        environment = {**os.environ, "AVIARY_QEMU": str(FETCHED / "qemu-system-x86_64")}
        with open(self.errors, "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                errors="replace", env=environment,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.booted = False

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def wait_for_boot(self):
        if not self.booted:
            if self.run("ulimit -l", limit=BOOT).status:
                raise Wrong(f"VM {self.name} does not start: {self.why()}")
            self.booted = True
        return self

    def tell(self, script):
        self.process.stdin.write(script + "\n")
        self.process.stdin.flush()

    def start(self, script):
        """Begins a command; `finish` has its outcome."""
        self.commands += 1
        mark = f"@end-{self.commands}"
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            # The line break before the mark is ours.
            self.tell(f"(ulimit -l unlimited\n{script}\n) </dev/null; status=$?; echo; echo {mark} $status")
        return mark, began

    def finish(self, started, limit):
        mark, began = started
        before, text = self.errors.stat().st_size, []
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, began + limit - time.monotonic()))
            except queue.Empty:
                return Outcome(-999, "".join(text), f"not done after {limit} s: {self.why()}", time.monotonic() - began)
            if line is None:
                self.lines.put(None)
                return Outcome(-1, "".join(text), f"the VM ended: {self.why()}", time.monotonic() - began)
            if line.startswith(mark + " "):
                output = "".join(text)
                errors = self.errors.read_bytes()[before:].decode(errors="replace")
                return Outcome(int(line.split()[1]), output.removesuffix("\n"), errors, time.monotonic() - began)
            text.append(line)

    def run(self, script, limit=120):
        return self.finish(self.start(script), limit)

    def expect(self, script, limit=120):
        """Its output; its status must be 0."""
        outcome = self.run(script, limit)
        if outcome.status:
            raise Wrong(f"in VM {self.name}: {script}: status {outcome.status}: {outcome.output[-1500:]} {outcome.errors[-1500:]}")
        return outcome.output

    def left(self):
        """What the driver says that there is, of all processes together."""
        text = self.expect("cd /sys/class/misc/aviary && grep . sessions chunks pages_pinned requests")
        return {name: int(value) for name, value in (line.split(":") for line in text.split())}

    def wait_until_nothing_is_left(self, seconds=HANG):
        deadline = time.monotonic() + seconds
        while any((left := self.left()).values()):
            if time.monotonic() > deadline:
                raise Wrong(f"in VM {self.name} there is left: {left}")
            time.sleep(0.1)

    def why(self):
        parts = [path.read_text(errors="replace")[-1500:] for path in (self.errors, self.console) if path.exists()]
        return "\n".join(parts)

    def ask_monitor(self, *requests):
        """QEMU's answers."""
        answers = []
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(HANG)
            connection.connect(str(self.monitor))
            stream = connection.makefile("rw")
            for request in ({"execute": "qmp_capabilities"}, *requests):
                stream.write(json.dumps(request))
                stream.flush()
                while not {"return", "error"} & (answer := json.loads(stream.readline())).keys():
                    pass
                answers.append(answer)
        return answers[1:]

    @property
    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """QEMU itself, as a machine that fails."""
        for qemu in children(self.process.pid):
            os.kill(qemu, signal.SIGKILL)
        self.process.wait(timeout=HANG)

    def end(self):
        if self.alive:
            self.process.kill()
        self.process.wait()


class World:
    """The node and its VMs. VMs start when they are needed first."""

    def __init__(self, directory, long):
        self.directory, self.long = Path(directory), long
        self.image = Image(directory)
        self.accelerator = self.directory / "accelerator"
        self.vms, self.node = {}, None
        # Of test cases: how many processes are watched and what the node has open, when a VM has died.
        self.after_a_death = None

    @staticmethod
    def log(text):
        print(f"     {text}", flush=True)

    def socket(self, name):
        return self.directory / f"{name}.sock"

    def start(self):
        self.image.build()
        # The tenants' API servers are other users.
        self.directory.chmod(0o755)
        self.accelerator.touch()
        self.accelerator.chmod(0o666)
        lines = []
        for name, tenant in TENANTS.items():
            lines += [f"[vms.{name}]", f'socket = "{self.socket(name)}"', f'tenant = "{tenant}"', f"[tenants.{tenant}]"]
            lines += [f"weight = {WEIGHTS[name]}"]
        lines += ['[devices."testapi accelerator"]', 'scheduler = "fair"', 'slice = "6ms"', 'awake = "300us"']
        # API servers open it themselves.
        lines += ["[sandbox]", f'devices = ["{self.accelerator}"]']
        config = self.directory / "node.toml"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        environment = {**self.native().environment(), "LD_LIBRARY_PATH": f"{self.image.testapi}:{CUDA}/driver",
                       "TESTAPI_ACCELERATOR": str(self.accelerator)}
        self.node = Node(environment, "--config", config)

    def native(self):
        """This machine's own OpenCL."""
        return Place("pocl", False, self.directory / "native")

    def vm(self, name, *options):
        """The VM of this name, started if it is not there."""
        vm = self.vms.get(name)
        if not vm or not vm.alive:
            # The next VM may connect when the one before has gone.
            wait_until(HANG, f"VM {name} has no device", lambda: not self.device_of(name))
            vm = self.vms[name] = Vm(self, name, *(options or self.options(name)))
        return vm

    def options(self, name):
        if name != "one":
            return ["--memory", "640M"]
        # Programs fill the memory of a device, and that of one that computes in host memory is the guest's.
        return ["--memory", "3G", *(hashcat_additions() if shutil.which("hashcat") else [])]

    def both(self):
        one, two = self.vm("one"), self.vm("two")
        return one.wait_for_boot(), two.wait_for_boot()

    def one(self):
        return self.vm("one").wait_for_boot()

    def device_of(self, name):
        """The process that is a VM's device."""
        for pid in children(self.node.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if "vm-device" in words and name in words:
                    return pid
        return None

    def sessions(self, **wanted):
        report = self.node.report() or {"sessions": []}
        return [s for s in report["sessions"] if all(s.get(key) == value for key, value in wanted.items())]

    def wait_for_session(self, seconds=HANG, **wanted):
        return wait_until(seconds, f"a session of {wanted}", lambda: self.sessions(**wanted))[0]

    def settle(self, seconds=HANG):
        """Nobody is attached and no API server but the spare one and the zygote is there: what the node has open then."""
        devices = [pid for pid in map(self.device_of, TENANTS) if pid]

        def settled():
            report = self.node.report()
            if not report or report["sessions"] or not report["zygote"]:
                return False
            return report["spares"] and len(self.node.servers()) == report["spares"] + 1 + len(devices)

        def counted():
            return {"node": len(descriptors(self.node.pid)), **{pid: len(descriptors(pid)) for pid in devices}}

        seen = []

        def steady():
            """The node may not have all of a spare that has just come, or still have some of a process that has gone."""
            counts = counted()
            seen.append(counts if settled() else None)
            return len(seen) >= STEADY_LOOKS and seen[-1] and all(counts == seen[-1] for counts in seen[-STEADY_LOOKS:])

        wait_until(seconds, "no session and no API server is left", settled)
        wait_until(seconds, "what the node and the devices have open stays as it is", steady)
        return seen[-1]

    def end(self):
        for vm in self.vms.values():
            vm.end()
        if self.node:
            self.node.discard()


class GuestPlace(Place):
    """A place for the programs of OpenCL's tests: in a VM."""

    def __init__(self, vm):
        super().__init__("pocl", True, vm.world.directory / "guest")
        self.vm = vm

    def run(self, arguments, limit=300, cwd=None, **environment):
        """Without hardware for VMs each instruction of the program is emulated: the limit is that of a hang."""
        arguments = [str(word).replace(f"{CACHE}/", f"{GUEST_CACHE}/") for word in arguments]
        words = [f"{key}={value}" for key, value in environment.items()] + arguments
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
        return self.vm.run(f"exec env {quoted}", 4 * limit)
