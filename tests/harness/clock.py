"""Wall clocks of single processes, which tests set."""

import struct
from pathlib import Path

from harness.process import run

YEAR = 365 * 24 * 3600


class Clock:
    """That of a program which is started with this environment."""

    def __init__(self, directory, name, seconds=0):
        self.file = directory / f"clock-{name}"
        self.file.write_bytes(struct.pack("q", seconds))
        self.library = directory / "clock.so"
        if not self.library.exists():
            run(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", self.library, Path(__file__).with_name("clock.c")])

    def environment(self):
        return {"LD_PRELOAD": str(self.library), "TEST_CLOCK": str(self.file)}

    def set(self, seconds):
        """This far ahead of the machine's. In place: the node has the file mapped."""
        with open(self.file, "r+b") as file:
            file.write(struct.pack("q", seconds))
