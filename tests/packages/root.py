"""Roots to install into: copies of one that lies there, written to memory."""

import subprocess
from pathlib import Path

from harness.process import HANG, ROOT


def done(*command, **options):
    options = {"timeout": 4 * HANG, **options}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)


def told(result):
    return f"status {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"


def mount(kind, place, *options):
    subprocess.run(["mount", "-t", kind, *options, "none", place], check=True)


class Root:
    """A copy of the root `of`, by default of this machine's, in which this source tree's folder is empty."""

    def __init__(self, folder, of=Path("/")):
        self.layers, self.path = folder / "layers", folder / "root"
        for place in (self.layers, self.path):
            place.mkdir(parents=True)
        mount("tmpfs", self.layers)
        for name in ("upper", "work"):
            (self.layers / name).mkdir()
        mount("overlay", self.path, "-o", f"lowerdir={of},upperdir={self.layers}/upper,workdir={self.layers}/work")
        for name in ("proc", "sys", "dev"):
            subprocess.run(["mount", "--rbind", f"/{name}", self.path / name], check=True)
        for name in ("tmp", "run", *((str(ROOT).lstrip("/"),) if of == Path("/") else ())):
            (self.path / name).mkdir(parents=True, exist_ok=True)
            mount("tmpfs", self.path / name)
        (self.path / "tmp").chmod(0o1777)

    def words(self):
        return ("chroot", self.path)

    def offline(self, folder, environment):
        """A function that runs a shell's line in `folder` of the root, with this environment alone and without a network."""
        settings = [f"{name}={value}" for name, value in environment.items()]
        words = ("unshare", "--net", *self.words(), "env", "-i", *settings, "sh", "-c")
        # What runs there may compile.
        return lambda line: done(*words, f"cd {folder} && {line}", timeout=30 * HANG)

    def left(self):
        """What of our files is written and not removed again."""
        upper = self.layers / "upper"
        found = [path for path in upper.rglob("*aviary*") if not path.is_char_device()]
        return [str(path.relative_to(upper)) for path in found]
