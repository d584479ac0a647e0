"""Virtual machines with an accelerator of a card: an initramfs, QEMU, and a shell in the guest."""

import contextlib
import lzma
import os
import queue
import subprocess
import threading
import time
from pathlib import Path

from harness.process import AVIARY, HANG, ROOT, Skipped, Wrong, run, wait_until

HERE = Path(__file__).resolve().parent
FETCHED = ROOT / "target/cache/vm"
NLB = "d8424dc4-a4a3-c413-f89e-433683f9040b"
LL = "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002"
# Seconds: on a busy machine without hardware for VMs.
BOOT = 400
# In the order in which they are loaded. Nothing of ours is among them.
MODULES = ["virt/lib/irqbypass", "drivers/vfio/vfio", "drivers/vfio/vfio_virqfd", "drivers/vfio/vfio_iommu_type1",
           "drivers/vfio/pci/vfio-pci-core", "drivers/vfio/pci/vfio-pci"]
FUNCTION = "0000:00:04.0"
INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox --install -s /bin
export PATH=/bin
for module in {' '.join(Path(name).name for name in MODULES)}; do [ -e /modules/$module.ko ] && insmod /modules/$module.ko; done
echo vfio-pci > /sys/bus/pci/devices/{FUNCTION}/driver_override
echo {FUNCTION} > /sys/bus/pci/drivers_probe
stty -F /dev/ttyS0 -echo -onlcr
exec sh -c 'echo @booted; while read -r line; do eval "$line"; echo "@end $?"; done' </dev/ttyS0 >/dev/ttyS0 2>&1
"""


def fetch(*more):
    """QEMU, a kernel and busybox; skips where this machine cannot have them."""
    fetched = subprocess.run([ROOT / "tests/vm/fetch", *more], capture_output=True, text=True, check=False)
    if fetched.returncode:
        last = (fetched.stdout + fetched.stderr).strip().splitlines()[-1:]
        raise Skipped(f"no QEMU and kernel for a virtual machine: {''.join(last)}")
    offered = run([FETCHED / "qemu-system-x86_64", "-device", "help"])
    if "vfio-user-pci" not in offered:
        raise Skipped("this QEMU has no vfio-user-pci")


def entry(name, mode, data=b""):
    """One of a `newc` archive of cpio, which the kernel unpacks."""
    fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def module(folder, name):
    """A module, unpacked. None: this kernel has it built in."""
    file = folder / f"kernel/{name}.ko"
    packed = file.with_name(file.name + ".xz")
    return lzma.decompress(packed.read_bytes()) if packed.exists() else file.read_bytes() if file.exists() else None


def initramfs(to, programs, modules=FETCHED / "modules", libraries=()):
    """A guest with busybox, the kernel's own modules for VFIO, these programs, and libraries of them by their places."""
    parts = [entry(folder, 0o40755) for folder in ("bin", "modules", "opt", "lib", "lib64")]
    parts.append(entry("init", 0o100755, INIT.encode()))
    parts.append(entry("bin/busybox", 0o100755, (FETCHED / "busybox").read_bytes()))
    found = [(Path(name).name, module(modules, name)) for name in MODULES]
    parts += [entry(f"modules/{name}.ko", 0o100644, data) for name, data in found if data]
    for program in programs:
        parts.append(entry(f"opt/{program.name}", 0o100755, program.read_bytes()))
    for place, library in libraries:
        parts.append(entry(place, 0o100755, Path(library).read_bytes()))
    to.write_bytes(b"".join(parts) + entry("TRAILER!!!", 0))


@contextlib.contextmanager
def discarded_on_failure(made):
    """Nobody has what could not start, or was interrupted while it did, and nobody else would end its processes."""
    try:
        yield
    except BaseException:
        made.discard()
        raise


class Device:
    """The process that is a machine's accelerator."""

    def __init__(self, directory, card, name, user=None, guid=NLB):
        self.socket, self.log = directory / f"{name}.vfio", directory / f"device-{name}"
        options = {"user": user, "group": user, "extra_groups": []} if user else {}
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen([AVIARY, "fpga-device", guid, "--card", f"unix:{card}", "--listen", f"unix:{self.socket}"],
                                            stderr=log, **options)
        with discarded_on_failure(self):
            wait_until(HANG, f"the device {name} listens: {self.log.read_text()}", lambda: self.socket.exists() or self.process.poll())

    def discard(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Waits until it has ended by itself; what it said."""
        self.process.wait(timeout=HANG)
        return self.log.read_text(encoding="utf-8")


class Machine:
    """A virtual machine with a shell on its serial line."""

    def __init__(self, directory, image, card, name, memory="768M", user=None, socket=None, kernel=FETCHED / "vmlinuz", iommu=True,
                 guid=NLB):
        self.device = None if socket else Device(directory, card, name, user, guid)
        self.errors, self.lines = directory / f"qemu-{name}", queue.Queue()
        command = [FETCHED / "qemu-system-x86_64", "-M", "q35,kernel-irqchip=off", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", memory,
                   "-object", f"memory-backend-memfd,id=mem,size={memory},share=on", "-machine", "memory-backend=mem", "-display", "none",
                   "-nodefaults", "-no-reboot", "-serial", "stdio",
                   "-kernel", kernel, "-initrd", image, "-append", "console=ttyS0 quiet no_timer_check panic=-1 intel_iommu=on"]
        place = f'"socket":{{"type":"unix","path":"{socket or self.device.socket}"}}'
        command += ["-device", "intel-iommu,caching-mode=on,intremap=on,aw-bits=48"] if iommu else []
        command += ["-device", f'{{"driver":"vfio-user-pci","addr":"4.0",{place}}}']
        with self.errors.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                            text=True, errors="replace")
        threading.Thread(target=self._read, daemon=True).start()
        with discarded_on_failure(self):
            self.until("@booted", BOOT)

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\r\n"))
        self.lines.put(None)

    def until(self, mark, limit):
        """Lines before one that begins so, and that one."""
        before, deadline = [], time.monotonic() + limit
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Wrong(f"no {mark} within {limit} s: {before[-20:]} {self.errors.read_text()[-1000:]}") from None
            if line is None:
                raise Wrong(f"the virtual machine ended: {before[-20:]} {self.errors.read_text()[-1000:]}")
            if line.startswith(mark):
                return before, line
            before.append(line)

    def start(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def run(self, command, limit=HANG):
        """Status and output of a command."""
        self.start(command)
        output, mark = self.until("@end", limit)
        return int(mark.split()[1]), "\n".join(output)

    def expect(self, command, limit=HANG):
        status, output = self.run(command, limit)
        if status:
            raise Wrong(f"in the virtual machine: {command}: status {status}: {output}")
        return output

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=HANG)

    def discard(self):
        self.process.kill()
        self.process.wait()
        if self.device:
            self.device.discard()


class At:
    """A card of a node."""

    def __init__(self, socket):
        self.socket = socket


class Card:
    """A card that serves programs and devices."""

    def __init__(self, directory, image, *options):
        self.socket = directory / "card.sock"
        self.log = directory / "card.log"
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen([AVIARY, "fpga", "card", image, "--listen", f"unix:{self.socket}", *options], stderr=log)
        with discarded_on_failure(self):
            wait_until(HANG, "the card listens", lambda: self.socket.exists() or self.process.poll())

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def discard(self):
        self.process.kill()
        self.process.wait()
