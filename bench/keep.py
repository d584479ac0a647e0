"""Results that stay: bench/results/SUITE/DATE-MACHINE-COMMIT.json with the figures, and .md with the table for people."""

import json
import re
import subprocess

from harness.process import ROOT, Failure

RESULTS = ROOT / "bench/results"


def commit():
    """The tree's commit, with `-changed` where it is not all that was measured."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failure(f"git {words[0]}: {done.stderr.strip()}: a result is kept with its commit")
        return done.stdout.strip()

    return git("rev-parse", "--short=8", "HEAD") + ("-changed" if git("status", "--porcelain") else "")


def name(about, number):
    """2026-11-25-2cpu-1234abcd."""
    return f"{about['date'].split()[0]}-{about['cpus']}cpu-{number}"


def keep(suite, words, about, results, meaning, folder=RESULTS, number=None):
    """Writes both files and returns the path of the table. `words`: what ./x bench was asked for."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", suite):
        raise Failure(f"`{suite}` is no name of a suite: small letters, digits and `-`")
    number = number or commit()
    start = folder / suite / name(about, number)
    start.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["./x bench", *words])
    whole = {"command": command, "commit": number, "machine": about, "results": results}
    start.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    lines = [f"# {suite}: {about['date']}", "", f"`{command}` of {number}", "",
             f"{about['cpu']}, {about['cpus']} CPUs, {about['system']}, load {about['load']} before and {about['load_after']} after", "",
             "| figure | value | |", "|---|---:|---|"]
    lines += [f"| {figure} | {value:.3f} | {meaning(figure)} |" for figure, value in results.items()]
    start.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return start.with_suffix(".md")
