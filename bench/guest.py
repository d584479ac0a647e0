"""A virtual machine that takes commands: for measurements inside of guests (vm.py)."""

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import measure
from harness.process import AVIARY, ROOT, Failure, Skipped, run

VM = ROOT / "target/cache/vm"
VSOCK = ROOT / "target/cache/vhost-device-vsock"
ECHO = ROOT / "target/release/examples/lane-echo"
VSOCK_VERSION = "0.3.0"
# The host's number in a guest is always 2.
GUEST_CID, PORT = 3, 4000
LINE_BYTES = 1 << 20
# A busy machine has been seen to take 47 s for a start.
BOOT = 300


def require():
    if not all((VM / name).exists() for name in ("qemu-system-x86_64", "vmlinuz", "modules", "headers", "busybox")):
        raise Skipped("target/cache/vm has no QEMU, kernel and busybox for a virtual machine (tests/vm/fetch brings them)")


def vsock_device():
    """rust-vmm's vhost-user device for vsock."""
    program = VSOCK / "bin/vhost-device-vsock"
    if not program.exists():
        # Under a name that only a whole installation gets: somebody may wait for it, too.
        with tempfile.TemporaryDirectory(dir=VSOCK.parent) as scratch:
            install = ["cargo", "install", "--quiet", "--locked", "--root", scratch, "vhost-device-vsock", "--version", VSOCK_VERSION]
            run(install, timeout=1800)
            program.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(f"{scratch}/bin/vhost-device-vsock", program)
    return program


def compile_echo():
    """A lane's rings, and nothing else."""
    run(["cargo", "build", "--quiet", "--release", "-p", "aviary-ring", "--example", "lane-echo"], timeout=600)
    return ECHO


def compile_tool(name, *flags):
    measure.BUILD.mkdir(parents=True, exist_ok=True)
    program = measure.BUILD / name
    run(["gcc", "-O2", "-o", program, ROOT / f"bench/vm/{name}.c", *flags])
    return program


def build_image(folder):
    """With Aviary's driver, vsock's, and everything that the measurements run."""
    testapi = ["-I", ROOT / "apis/testapi/include", "-L", measure.BUILD / "testapi", "-ltestapi"]
    measure.test_library()
    calls, cost = measure.compile_c("calls", *testapi), measure.compile_c("callcost", *testapi)
    programs = [calls, cost, compile_tool("counts", *testapi)]
    driver = folder / "driver"
    shutil.copytree(ROOT / "guest-driver/linux", driver, ignore=shutil.ignore_patterns("tests", "*.ko", "*.o", ".*"))
    run(["make", "-s", "-C", driver, f"KDIR={VM / 'headers'}"])
    command = [AVIARY, "guest", "image", "--kernel", VM / "vmlinuz", "--modules", VM / "modules", "--busybox", VM / "busybox"]
    command += ["--driver", driver / "aviary.ko", "--module", "vmw_vsock_virtio_transport", "--api", "testapi", "--api", "opencl"]
    # The C library comes with those programs whose libraries this machine has. The others' is the guest library.
    for program in (compile_tool("roundtrip", "-static"), compile_echo(), compile_tool("transfer", "-lOpenCL"), shutil.which("strace")):
        if not program:
            raise Failure("strace is missing: ./x setup installs it")
        command += ["--program", program]
    for program in programs:
        command += ["--add", f"{program}:/usr/bin/{program.name}"]
    command += ["--add", f"{ROOT / 'bench/vm/inside.sh'}:/opt/inside.sh"]
    run([*command, "-o", folder / "image"])
    return folder / "image"


@contextlib.contextmanager
def background(command, **options):
    process = subprocess.Popen([str(word) for word in command], **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(path):
    end = time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > end:
            raise Failure(f"{path.name} did not appear")
        time.sleep(0.02)


class Guest:
    """Runs shell commands in a VM, one after the other."""

    def __init__(self, process, folder, accelerator):
        self.process, self.folder, self.accelerator = process, folder, accelerator
        self.buffer = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(process.stdout, selectors.EVENT_READ)

    def line(self, timeout=300):
        """The next line that the guest prints."""
        end = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            if not self.selector.select(max(0, end - time.monotonic())):
                raise Failure(f"the VM printed nothing for {timeout} s{self.last_words()}")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise Failure(f"the VM has ended{self.last_words()}")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode(errors="replace")

    def last_words(self):
        words = [file.read_text(errors="replace").strip()[-500:] for file in self.folder.glob("*.log")]
        return "".join(f"\n{text}" for text in words if text)

    def type(self, line=""):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def end(self, command, timeout=600):
        """What a command still prints until it ends."""
        lines = []
        while not (line := self.line(timeout)).startswith("= "):
            lines.append(line)
        if line != "= 0":
            raise Failure(f"in the VM: {command}: status {line[2:]}: {' '.join(lines)[-500:]}{self.last_words()}")
        return lines

    def run(self, command, timeout=600):
        self.type(command)
        return self.end(command, timeout)

    def measured(self, command, timeout=600):
        return parsed(self.run(command, timeout), command)

    @contextlib.contextmanager
    def answered(self, *role, program=measure.BUILD / "roundtrip"):
        """A program at the host's end that serves until its input ends."""
        with background([program, *role], stdin=subprocess.PIPE) as process:
            if role[0] == "stream-host":
                wait_for(Path(role[1]))
            yield
            process.stdin.close()
            process.wait(10)

    def line_memory(self):
        """The ivshmem device's memory. A sealed memfd, because Aviary's device accepts no other memory in its VM; only
        QEMU has it open."""
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8").split():
            for file in Path(f"/proc/{child}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if "memfd:" in os.readlink(file) and file.stat().st_size == LINE_BYTES:
                        return file
        raise Failure("QEMU has no memory of an ivshmem device open")

    def stream_socket(self):
        """Where vhost-device-vsock looks for who listens at the port."""
        return f"{self.folder}/vsock_{PORT}"

    def session(self, program):
        """What the node says of a program's session in the VM."""
        report = json.loads(run([AVIARY, "ps", "--json", "--server", f"unix:{self.folder}/node.sock"]))
        found = [session for node in report for session in node["sessions"] if session["program"] == program]
        if len(found) != 1:
            raise Failure(f"{len(found)} sessions of {program} at the node")
        return found[0]


def parsed(lines, command):
    """The JSON object that a program printed last."""
    try:
        return json.loads(lines[-1])
    except (ValueError, IndexError) as error:
        raise Failure(f"in the VM: {command} printed no result: {' '.join(lines)[-300:]}") from error


@contextlib.contextmanager
def booted(memory="512M"):
    """A VM with Aviary's device, memory that it shares with the host (ivshmem), and vsock; at a node with all of it."""
    require()
    vsock = vsock_device()
    _, environment = measure.test_library()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        image = build_image(folder)
        logs = {who: stack.enter_context(open(folder / f"{who}.log", "w", encoding="utf-8")) for who in ("node", "vsock", "vm")}
        serve = [AVIARY, "serve", "--listen", f"unix:{folder}/node.sock", "--vm", f"bench={folder}/device.sock"]
        stack.enter_context(background(serve, env={**os.environ, **environment}, stderr=logs["node"]))
        device = [vsock, "--vm", f"guest-cid={GUEST_CID},socket={folder}/vsock.sock,uds-path={folder}/vsock"]
        stack.enter_context(background(device, stdout=logs["vsock"], stderr=logs["vsock"]))
        wait_for(folder / "device.sock")
        wait_for(folder / "vsock.sock")
        command = [AVIARY, "vm", "run", "--qemu", VM / "qemu-system-x86_64", "--socket", folder / "device.sock", "--memory", memory]
        for argument in (
            "-object", f"memory-backend-memfd,id=line,size={LINE_BYTES},share=on", "-device", "ivshmem-plain,memdev=line",
            "-chardev", f"socket,id=vsock,path={folder}/vsock.sock", "-device", "vhost-user-vsock-pci,chardev=vsock",
        ):
            command.append(f"--qemu-arg={argument}")
        accelerator = "KVM" if "-accel kvm" in run([*command, "--print"]) else "TCG"
        command += ["--image", image, "--console", folder / "console.log", "--", "sh", "/opt/inside.sh"]
        process = stack.enter_context(background(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=logs["vm"]))
        guest = Guest(process, folder, accelerator)
        if guest.line(BOOT) != "= ready":
            raise Failure(f"the VM did not start{guest.last_words()}")
        yield guest
