"""The emulator in which delegated calls are tested: bochs, Debian's package."""

import shutil
import subprocess
from pathlib import Path

# What an image may take, in wall-clock seconds: a guard against a hang, and no claim.
HANG = 600
FIRMWARE = {
    "bios": ("/usr/share/bochs/BIOS-bochs-latest",),
    "vga": ("/usr/share/bochs/VGABIOS-lgpl-latest", "/usr/share/vgabios/vgabios.bin"),
}
# Of a disk.
CYLINDER_BYTES = 16 * 63 * 512
# Ticks are instructions and do not depend on the machine: `sync=none`, and a clock that begins at a fixed time.
CONFIGURATION = """\
plugin_ctrl: unmapped=1, biosdev=1, speaker=0, extfpuirq=1, parallel=0, serial=0, iodebug=0
config_interface: textconfig
display_library: rfb, options="timeout=0"
memory: guest={memory}, host={memory}
romimage: file={bios}
vgaromimage: file={vga}
boot: disk
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=disk, mode=flat, path={image}, cylinders={cylinders}, heads=16, spt=63
cpu: model=corei7_skylake_x, count=1, ips=100000000, reset_on_triple_fault=0
clock: sync=none, time0=1000000000
port_e9_hack: enabled=1
log: {folder}/bochs.log
panic: action=fatal
error: action=report
info: action=ignore
debug: action=ignore
"""


def program():
    """The emulator itself: Debian's `bochs` is a script that begins it."""
    return shutil.which("bochs-bin") or shutil.which("bochs")


def missing():
    """What this machine lacks; None if it has everything."""
    if not program():
        return "there is no bochs: apt-get install bochs bochs-term bochsbios vgabios"
    for places in FIRMWARE.values():
        if not any(Path(place).exists() for place in places):
            return f"there is no {places[0]}: apt-get install bochsbios vgabios"
    return None


def emulate(image, memory=64):
    """What the image prints. Everything it leaves is in the image's folder."""
    folder = image.parent
    firmware = {name: next(place for place in places if Path(place).exists()) for name, places in FIRMWARE.items()}
    configuration, commands = image.with_suffix(".rc"), folder / "commands"
    cylinders = image.stat().st_size // CYLINDER_BYTES
    text = CONFIGURATION.format(image=image, folder=folder, memory=memory, cylinders=cylinders, **firmware)
    configuration.write_text(text, encoding="utf-8")
    # Debian's emulator has a debugger built in, which begins with a prompt.
    commands.write_text("c\n", encoding="utf-8")
    # It ends with status 1 in any case.
    ran = subprocess.run([program(), "-q", "-f", configuration, "-rc", commands], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, timeout=HANG, check=False, cwd=folder)
    text = ran.stdout.decode("utf-8", "replace")
    image.with_suffix(".txt").write_text(text, encoding="utf-8")
    return text
