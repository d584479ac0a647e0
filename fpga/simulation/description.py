"""Descriptions of images (fpga/images/NAME.toml) and accelerators (fpga/accelerators/NAME/NAME.toml): read, checked, merged."""

import re
import tomllib
from pathlib import Path

FPGA = Path(__file__).resolve().parents[1]
MAX_PORTS = 16
KINDS = ("plain", "status", "effect")
# Below this offset of its page an accelerator has its header and the preemption interface.
FIRST_REGISTER, PAGE = 0x30, 0x1000
# The monitor's clock, and those that an accelerator makes of it by stepping in every second or fourth cycle only.
CLOCKS_MHZ = (400, 200, 100)
# Parameters of the card's model if an image does not say otherwise; docs/fpga-monitor.md explains each.
MODEL = {
    "read_latency": 100, "write_latency": 100, "lines_per_1000_cycles": 600, "requests": 64, "tlb_entries": 512,
    "walk_cycles": 40, "mmio_read_cycles": 400, "mmio_write_cycles": 100,
}
IMAGE_KEYS = {"summary", "accelerators", "arity", "arbiter", "bypass", "shell_pages", "model"}
ARITIES = (2, 4, 8, 16)
ARBITERS = ("round-robin", "weighted")
ACCELERATOR_KEYS = {"guid", "summary", "clock_mhz", "state_lines", "registers"}


class Mistake(Exception):
    """A description that cannot be used: file, line and what is wrong."""


def line_of(path, word):
    """The number of the line that begins with this key; 1 if there is none."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(rf"\s*{re.escape(word)}\b", line):
            return number
    return 1


def mistake(path, word, text):
    raise Mistake(f"{path}:{line_of(path, word)}: {text}")


def load(path):
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Mistake(f"{path}: there is no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise Mistake(f"{path}: {error}") from None


def whole(path, table, key, low, high, default=None):
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        mistake(path, key, f"{key} is {value!r}; expected a whole number from {low} to {high}")
    return value


def check_registers(path, registers):
    """Registers of an accelerator's page: 8 bytes each, aligned, in its own part of the page, without overlaps."""
    taken, starts = {}, []
    for name, register in registers.items():
        if not isinstance(register, dict) or set(register) - {"starts"} != {"at", "kind"}:
            mistake(path, name, f'register {name}: expected {{ at = OFFSET, kind = "plain" | "status" | "effect" }}')
        at, kind = register["at"], register["kind"]
        if kind not in KINDS:
            mistake(path, name, f"register {name}: kind {kind!r}; expected one of {', '.join(KINDS)}")
        if not isinstance(at, int) or at % 8:
            mistake(path, name, f"register {name}: offset {at!r} is not a multiple of 8")
        if at < FIRST_REGISTER:
            mistake(path, name, f"register {name}: 0x{at:x} belongs to the header and the preemption interface; the first one is 0x30")
        if at > PAGE - 8:
            mistake(path, name, f"register {name}: 0x{at:x} lies beyond the page of 4 KB")
        if at in taken:
            mistake(path, name, f"register {name}: 0x{at:x} is register {taken[at]}, too")
        taken[at] = name
        if "starts" in register:
            check_starts(path, name, register, starts)
            starts.append(name)


def check_starts(path, name, register, others):
    """The bits of a register by which a client starts a job."""
    whole(path, {name: register["starts"]}, name, 1, 2**63 - 1)
    if register["kind"] != "plain":
        mistake(path, name, f"register {name}: starts a job and is {register['kind']}; expected a plain one")
    if others:
        mistake(path, name, f"register {name}: register {others[0]} starts a job, too; there is one at most")


def accelerator(name, folder=FPGA / "accelerators"):
    """The checked description of an accelerator, with the folder that it is in."""
    path = folder / name / f"{name}.toml"
    table = load(path)
    for key in table:
        if key not in ACCELERATOR_KEYS:
            mistake(path, key, f"unknown key {key}; there are {', '.join(sorted(ACCELERATOR_KEYS))}")
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(table.get("guid"))):
        mistake(path, "guid", f"guid is {table.get('guid')!r}; expected a GUID in lower case")
    clock = table.get("clock_mhz")
    if clock not in CLOCKS_MHZ:
        mistake(path, "clock_mhz", f"clock_mhz is {clock!r}; expected one of {', '.join(map(str, CLOCKS_MHZ))}")
    whole(path, table, "state_lines", 1, 65536)
    check_registers(path, table.setdefault("registers", {}))
    table["name"] = name
    table["folder"] = str(path.parent)
    return table


def image_file(name):
    """The file of an image: one of ours by its name, or any file by its path."""
    path = Path(name)
    if path.suffix != ".toml":
        return FPGA / "images" / f"{name}.toml"
    if path.resolve().parent != FPGA / "images" and (FPGA / "images" / path.name).exists():
        raise Mistake(f"{path}: there is an image of this name in {FPGA / 'images'}; expected another name")
    return path.resolve()


def image(path, accelerators=FPGA / "accelerators"):
    """The checked description of an image, with those of its accelerators. These lie beside the image's file or in
    `accelerators`."""
    table = load(path)
    for key in table:
        if key not in IMAGE_KEYS:
            mistake(path, key, f"unknown key {key}; there are {', '.join(sorted(IMAGE_KEYS))}")
    ports = []
    for entry in table.get("accelerators", []):
        kind, _, count = str(entry).partition("*")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", kind) or not re.fullmatch(r"\d*", count):
            mistake(path, "accelerators", f"{entry!r}: expected NAME or NAME*COUNT")
        ports += [kind] * int(count or 1)
    if not 1 <= len(ports) <= MAX_PORTS:
        mistake(path, "accelerators", f"{len(ports)} ports; a monitor has 1 to {MAX_PORTS}")
    bypass = table.get("bypass", False)
    if bypass and len(ports) != 1:
        mistake(path, "bypass", f"the pass-through build has one accelerator, not {len(ports)}")
    arity = table.get("arity", 2)
    if arity not in ARITIES:
        mistake(path, "arity", f"arity is {arity!r}; expected one of {', '.join(map(str, ARITIES))}")
    arbiter = table.get("arbiter", "round-robin")
    if arbiter not in ARBITERS:
        mistake(path, "arbiter", f"arbiter is {arbiter!r}; expected one of {', '.join(ARBITERS)}")
    model = table.get("model", {})
    for key in model:
        if key not in MODEL:
            mistake(path, key, f"unknown key {key} of the model; there are {', '.join(MODEL)}")
    model = {key: whole(path, model, key, 1, 1_000_000, default) for key, default in MODEL.items()}
    beside = {kind: path.parent for kind in dict.fromkeys(ports) if (path.parent / kind / f"{kind}.toml").exists()}
    kinds = {kind: accelerator(kind, beside.get(kind, accelerators)) for kind in dict.fromkeys(ports)}
    guids = {}
    for kind, description in kinds.items():
        other = guids.setdefault(description["guid"], kind)
        if other != kind:
            mistake(path, "accelerators", f"{other} and {kind} have the same guid {description['guid']}")
    return {
        "name": path.stem, "ports": [kinds[kind] for kind in ports], "arity": arity, "arbiter": arbiter, "bypass": bool(bypass),
        "shell_pages": whole(path, table, "shell_pages", 0, 200, 0), "model": model,
    }
