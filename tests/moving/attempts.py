"""Runs of programs whose sessions move after every n-th call, or are parked and come back: what they did, and how they differ
from runs that do not."""

import collections
import os
import re
import subprocess

from harness.process import Failure, Wrong
from programs import KINDS

# Seconds after which a program hangs. A move of PoCL's session costs a tenth of one, more on a busy machine.
LIMIT_S = 900


def output(command, environment):
    """Status, standard output and standard error."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **environment}, check=False
        )
    except subprocess.TimeoutExpired as expired:
        raise Failure(f"{' '.join(map(str, command))} was not done after {LIMIT_S} s") from expired
    return done.returncode, done.stdout, done.stderr


class Attempts:
    """The attempts of one run, as the node tells them at the log level debug; shown, and kept as a figure."""

    def __init__(self, tools, name, every, kind, errors):
        self.errors = errors
        times = sorted(int(us) for us, _ in re.findall(KINDS[kind], errors))
        self.count = len(times)
        self.reasons = collections.Counter(re.sub(r"\d+", "N", why) for why in re.findall(r"not moved: (.*)", errors))
        refused = sum(self.reasons.values())
        told = "; ".join(f"{count} x {why}" for why, count in self.reasons.most_common(4))
        print(f"     {name} after every {every}: {self.count} {kind}s, {refused} refused {told}", flush=True)
        tools.figures.append({
            "program": name, "every": every, "kind": kind, "moves": self.count, "refused": dict(self.reasons),
            "median_us": times[self.count // 2] if times else None,
        })

    def same(self, native, moved):
        """Raises if status and output of the run differ from those without moves."""
        if native == moved:
            return
        pairs = zip(native[1].splitlines() + [""], moved[1].splitlines() + [""])
        differs = next((f"natively {one!r}, moved {two!r}" for one, two in pairs if one != two), "")
        raise Wrong(f"status {moved[0]}, natively {native[0]}; {differs}\n{self.last_lines()}")

    def last_lines(self):
        """Of the run's standard error, without what the node tells of its own accord."""
        lines = [line for line in self.errors.splitlines() if "debug:" not in line and "info:" not in line]
        return "\n".join(lines[-10:])

    def expected(self, parts):
        """Raises if a reason for not moving has none of these parts."""
        unexpected = [why for why in self.reasons if not any(part in why for part in parts)]
        if unexpected:
            raise Wrong(f"not moved: {unexpected[0]}")
