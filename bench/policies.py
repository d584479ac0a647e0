"""What a scheduling policy costs."""

import pathlib
import subprocess

from harness.process import Failure


ROOT = pathlib.Path(__file__).resolve().parent.parent


def decisions(_quick):
    sources = sorted(str(path) for path in ROOT.glob("policies/*.c"))
    command = ["cargo", "run", "--release", "--quiet", "-p", "aviary-policy", "--example", "decision", "--", *sources]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if ran.returncode != 0:
        raise Failure(ran.stderr.strip())
    figures = {name: float(value) for name, value in (line.split() for line in ran.stdout.splitlines())}
    compiled = [value for name, value in figures.items() if name.endswith((".schedule_ns", ".consume_ns"))]
    return {
        "policy.decision_ns": figures["figure7.schedule_ns"],
        "policy.consume_ns": figures["figure7.consume_ns"],
        "policy.interpreted_ns": figures["figure7.interpreted_schedule_ns"],
        "policy.verify_ms": figures["figure7.verify_ms"],
        "policy.slowest_decision_ns": max(compiled),
    }
