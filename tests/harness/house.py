"""What `./x lint` checks of the house's rules: words, names, commits, line lengths, circles, pages, tests, dependencies.

  ./x house            checks
  ./x house --lower    writes the numbers of house.json down to what there is now; it never raises one

house.json has the offences that there are yet, by file or crate. A count may fall and never rise. A rule that does not find what
it checks is broken, and says so.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from harness import house_c, house_docs, house_rust, house_size
from harness.process import ROOT

ALLOWED = Path(__file__).with_name("house.json")
# The subject of the last commit before the rule for subjects: hashes differ between histories that were rewritten.
LAST_BEFORE_RULE = "Devices: what a device still has to do is computed in one place"
SUBJECT = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: [A-Z0-9`./].*")
MOST_COLUMNS, MOST_SUBJECT = 100, 72
COMMIT_PRONOUN = re.compile(r"[^:]*: (?:who|what|whoever|whatever|whether|nobody)\b", re.I)
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


def type_names(files, text_of=text_of):
    """Types of a crate's source that have the name of another one of it: how many there are too many, by crate and name."""
    found = defaultdict(Counter)
    for path in files:
        if path.suffix == ".rs" and len(path.parts) > 2 and path.parts[2] == "src" and not re.search(r"tests?\.rs$|_model\.rs$", path.name):
            found[path.parts[1]].update(TYPE.findall(text_of(path)))
    return {f"{crate}: {name}": count - 1 for crate, names in found.items() for name, count in names.items() if count > 1}


def long_lines(files, text_of=text_of):
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


# On a thread that serves others nothing takes a descriptor out of a peer's socket (`hear`, `receive_plain`), and no process is
# started while something may be closed for the last time in it (`Aside::while_spawning`).
TAKES = re.compile(r"\b(?:recvmsg|RecvAncillaryBuffer|receive_with)\b|\breceive\(")
STARTS = re.compile(r"\.spawn\(\)|\.(?:status|output)\(\)")


def foreign_descriptors(files, text_of=text_of):
    """Places in the node, by file, that take descriptors of peers or start processes without a stop to closing; tests are left out."""
    found = Counter()
    for path in files:
        if path.suffix != ".rs" or path.parts[:3] != ("crates", "node", "src") or path.name.endswith("_tests.rs"):
            continue
        for line in text_of(path).split("#[cfg(test)]")[0].splitlines():
            starts = STARTS.search(line) and "while_spawning" not in line and "thread" not in line
            found[str(path)] += bool(TAKES.search(line) or starts)
    return {path: count for path, count in found.items() if count}


def subject_problem(subject):
    """The rule that a commit's subject does not follow; None if it follows all."""
    if len(subject) > MOST_SUBJECT:
        return f"the subject has {len(subject)} columns, at most {MOST_SUBJECT}"
    if not SUBJECT.fullmatch(subject):
        return "the subject is not `area: Imperative summary`"
    return "the subject of a sentence is a noun" if COMMIT_PRONOUN.match(subject) else None


def subjects():
    return command("git", "log", "--no-merges", "--topo-order", "--format=%s").splitlines()


def commits(log):
    """Subjects that do not follow the rules, since there are rules: subject -> 1."""
    if LAST_BEFORE_RULE not in log:
        raise house_docs.Blind(f"the commit `{LAST_BEFORE_RULE}`, after which subjects have rules, is not in this history: git fetch --unshallow")
    return {subject: 1 for subject in log[:log.index(LAST_BEFORE_RULE)] if subject_problem(subject)}


# Scripts that build for themselves: they run only with --long, or are tools.
BUILDERS = {"tests/fuzz", "tests/miri", "tests/order-broken"}
CARGO = re.compile(r"""cargo["',\s]+["']?(?:run|build|test)\b""")


def cargo_in_tests(files, text_of=text_of):
    """Tests that have cargo build something: with other features all is compiled again, and building is a step of its own."""
    found = Counter()
    for path in files:
        if path.parts[0] not in ("tests", "apis", "examples", "fpga", "guest-driver") or path.parts[:2] == ("tests", "harness") or path.suffix in (".md", ".rs"):
            continue
        if str(path) in BUILDERS or (path.parts[0] in ("apis", "guest-driver") and "tests" not in path.parts):
            continue
        found[str(path)] = sum(bool(CARGO.search(line)) for line in text_of(path).splitlines() if not line.lstrip().startswith("#"))
    return found


def cli_sources(files):
    return [path for path in files if path.suffix == ".rs" and path.parts[:3] == ("crates", "cli", "src")]


def undescribed_options(files, text_of=text_of):
    pages = [path for path in files if path.suffix == ".md" and (path.parts[0] in ("docs", "bench") or len(path.parts) == 1)]
    return house_docs.undescribed(text_of, cli_sources(files), pages)


COUNTED = {
    "places in the node that take foreign descriptors or start processes beside closes": lambda tree: foreign_descriptors(tree.files, tree.text_of),
    "types of one name in a crate": lambda tree: type_names(tree.files, tree.text_of),
    "lines of documentation over 100 columns": lambda tree: long_lines(tree.files, tree.text_of),
    "files in circles": lambda tree: house_rust.files_in_circles(tree.files, tree.text_of),
    "C files in circles": lambda tree: house_c.files_in_circles(tree.files, tree.text_of),
    "source files above 12 in a folder": lambda tree: house_size.full_folders(tree.files),
    "source files over 600 lines": lambda tree: house_size.long_files(tree.files, tree.text_of),
    "functions over 60 lines": lambda tree: house_size.long_functions(tree.files, tree.text_of),
    "imports through lib.rs": lambda tree: house_rust.imports_through_lib(tree.files, tree.text_of),
    "error texts written twice": lambda tree: house_rust.doubled_errors(tree.files, tree.text_of),
    "commit subjects that do not follow the rules": lambda tree: commits(tree.log),
    "builds inside of tests": lambda tree: cargo_in_tests(tree.files, tree.text_of),
    "options that no page names": lambda tree: undescribed_options(tree.files, tree.text_of),
}


class Tree:
    """What the rules read: the files of the work tree and the subjects of its commits, or others in their place (harness/selftest)."""

    def __init__(self, text_of=text_of, log=None):
        self.files, self.text_of = tracked(), text_of
        self.log = subjects() if log is None else log

    def counts(self):
        return {kind: dict(count(self)) for kind, count in COUNTED.items()}

    def problems(self, allowed, found):
        pages = [*house_docs.crates(self.text_of), *house_docs.options(self.text_of, cli_sources(self.files))]
        return [*risen(allowed, found), *pages]


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
    try:
        return check(options.lower)
    except house_docs.Blind as why:
        print(f"house: a rule cannot look: {why}")
        return 1


def check(lower):
    tree, allowed = Tree(), json.loads(ALLOWED.read_text(encoding="utf-8"))
    found = tree.counts()
    if lower:
        ALLOWED.write_text(json.dumps(lowered(allowed, found), indent=1) + "\n", encoding="utf-8")
        return 0
    problems = [*tree.problems(allowed, found), *dependencies()]
    for problem in problems:
        print(f"house: {problem}")
    for kind, counts in found.items():
        total, most = sum(counts.values()), sum(allowed.get(kind, {}).values())
        print(f"house: {total} {kind}" + (f", {most} allowed: ./x house --lower" if total < most else ""))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
