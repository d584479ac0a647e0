"""What `./x lint` checks of the house's rules: words, names, commits, line lengths, dependencies.

  ./x house            checks
  ./x house --lower    writes the numbers of house.json down to what there is now; it never raises one

house.json has the offences that there are yet, by file or crate. A count may fall and never rise.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from harness.process import ROOT

ALLOWED = Path(__file__).with_name("house.json")
# The last commit before the rule for subjects.
SUBJECTS_SINCE = "d50ead44"
SUBJECT = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: [A-Z0-9`./].*")
MOST_COLUMNS, MOST_SUBJECT = 100, 72
# A comment's or sentence's subject is the thing itself.
PRONOUNS = r"(?:who|what|whoever|whatever|whether|nobody)\b"
COMMENT = re.compile(r"^\s*(?://[/!]?|/\*+|\*|#)\s*" + PRONOUNS, re.I)
COMMIT_PRONOUN = re.compile(r"[^:]*: (?:who|what|whoever|whatever|whether|nobody)\b", re.I)
SOURCES = {".rs", ".c", ".h", ".py", ".sh", ".lapis", ".toml", ""}
TYPE = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:struct|enum|union|trait|type) (\w+)", re.M)
LICENSES = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "Unicode-3.0", "Unicode-DFS-2016", "0BSD", "CC0-1.0",
            "Unlicense", "Apache-2.0 WITH LLVM-exception", "BSL-1.0", "CDLA-Permissive-2.0", "NCSA"}
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def command(*words):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tracked():
    return [Path(name) for name in command("git", "ls-files", "-co", "--exclude-standard").splitlines() if (ROOT / name).is_file()]


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def comment_subjects(files):
    """Comment lines that begin with a pronoun, of all files together: files move between folders."""
    sources = [path for path in files if path.suffix in SOURCES and not {"seeds", "results"} & set(path.parts)]
    return {"in all": sum(bool(COMMENT.match(line)) for path in sources for line in text_of(path).splitlines())}


def type_names(files, text_of=text_of):
    """Types of a crate's source that have the name of another one of it: how many there are too many, by crate and name."""
    found = defaultdict(Counter)
    for path in files:
        if path.suffix == ".rs" and len(path.parts) > 2 and path.parts[2] == "src" and not re.search(r"tests?\.rs$|_model\.rs$", path.name):
            found[path.parts[1]].update(TYPE.findall(text_of(path)))
    return {f"{crate}: {name}": count - 1 for crate, names in found.items() for name, count in names.items() if count > 1}


def long_lines(files):
    """Lines of the documentation that are too wide, by file; tables and blocks of code are as wide as they are."""
    found = Counter()
    for path in files:
        if path.suffix != ".md" or path.name == "CHANGELOG.md" or "results" in path.parts:
            continue
        fenced = False
        for line in text_of(path).splitlines():
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced and not line.lstrip().startswith("|") and len(line) > MOST_COLUMNS:
                found[str(path)] += 1
    return found


COUNTED = {
    "comment lines that begin with a pronoun": comment_subjects,
    "types of one name in a crate": type_names,
    "lines of documentation over 100 columns": long_lines,
}


def subject_problem(subject):
    """The rule that a commit's subject does not follow; None if it follows all."""
    if len(subject) > MOST_SUBJECT:
        return f"the subject has {len(subject)} columns, at most {MOST_SUBJECT}"
    if not SUBJECT.fullmatch(subject):
        return "the subject is not `area: Imperative summary`"
    return "the subject of a sentence is a noun" if COMMIT_PRONOUN.match(subject) else None


def commits():
    """Problems of commit subjects since the rule."""
    known = subprocess.run(["git", "cat-file", "-e", SUBJECTS_SINCE], cwd=ROOT, capture_output=True, check=False).returncode == 0
    if not known:
        return []
    problems = []
    for line in command("git", "log", "--no-merges", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD").splitlines():
        number, subject = line.split(" ", 1)
        problem = subject_problem(subject)
        if problem:
            problems.append(f"commit {number}: {problem}: {subject}")
    return problems


def licensed(expression):
    """If an SPDX expression is true with the licenses that are allowed."""
    words = re.findall(r"[()]|/|(?:(?!\b(?:AND|OR)\b)[^()/])+|AND|OR", expression.strip())
    python = {"AND": "and", "OR": "or", "/": "or", "(": "(", ")": ")"}
    terms = [python.get(word.strip()) or str(word.strip() in LICENSES) for word in words if word.strip()]
    # Nothing but True, False, `and`, `or` and brackets.
    return bool(terms) and bool(eval(" ".join(terms)))  # pylint: disable=eval-used


def packages(manifest):
    return json.loads(command("cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", manifest))["packages"]


def dependencies():
    """Problems of what the workspace and the fuzz targets depend on: licenses, origins, versions that mean any.

    --locked: a lock file that does not fit its manifests is an error.
    """
    problems = []
    for package in packages("Cargo.toml") + packages("fuzz/Cargo.toml"):
        name = f"{package['name']} {package['version']}"
        if package["source"] not in (None, REGISTRY):
            problems.append(f"{name} comes from {package['source']}, not from crates.io")
        if not licensed(package["license"] or ""):
            problems.append(f"{name}: its license `{package['license']}` is not among those allowed (LICENSES in tests/harness/house.py)")
        if package["source"] is None:
            problems += [f"{name}: its dependency {d['name']} may have any version" for d in package["dependencies"] if d["req"] == "*" and d["source"]]
    return problems


def risen(allowed, found):
    """Problems, and what there is too much of by kind."""
    problems = []
    for kind, counts in found.items():
        for place, count in sorted(counts.items()):
            most = allowed.get(kind, {}).get(place, 0)
            if count > most:
                problems.append(f"{place}: {count} {kind}, at most {most} are allowed (tests/harness/house.json, where numbers only fall)")
    return problems


def lowered(allowed, found):
    """The allowed counts, each not above what there is."""
    result = {}
    for kind, places in allowed.items():
        low = {place: min(most, found[kind].get(place, 0)) for place, most in places.items()}
        result[kind] = {place: count for place, count in sorted(low.items()) if count}
    return result


def main(arguments):
    parser = argparse.ArgumentParser(prog="./x house", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true")
    options = parser.parse_args(arguments)
    files = tracked()
    allowed = json.loads(ALLOWED.read_text(encoding="utf-8"))
    found = {kind: dict(count(files)) for kind, count in COUNTED.items()}
    if options.lower:
        ALLOWED.write_text(json.dumps(lowered(allowed, found), indent=1) + "\n", encoding="utf-8")
        return 0
    problems = [*risen(allowed, found), *commits(), *dependencies()]
    for problem in problems:
        print(f"house: {problem}")
    for kind, counts in found.items():
        total, most = sum(counts.values()), sum(allowed.get(kind, {}).values())
        print(f"house: {total} {kind}" + (f", {most} allowed: ./x house --lower" if total < most else ""))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
