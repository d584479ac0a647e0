"""Rules of the house that compare pages with the code, so that pages cannot become false in silence."""

import re
import tomllib
from pathlib import Path

from harness.process import ROOT

CRATES_PAGE, OPTIONS_PAGE = Path("docs/architecture.md"), Path("docs/user-guide.md")
# A struct of clap's, and its fields with their attributes.
STRUCT = re.compile(r"(?:pub(?:\([^)]*\))? )?struct (\w+)[^{;(]*\{(.*?)^\}", re.S | re.M)
FIELD = re.compile(r"((?:^\s*#\[[^\n]*\]\n)+)\s*(?:pub(?:\([^)]*\))? )?(\w+): ([^\n]+?),?\n", re.M)
LONG = re.compile(r"#\[arg\([^\n]*?\blong\b(?:\s*=\s*\"([\w-]+)\")?")


class Blind(Exception):
    """A rule does not find what it compares: it would be kept by everything."""


def section(text, heading):
    """What is below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.S | re.M)
    if not found:
        raise Blind(f"no heading `{heading}`")
    return found[1]


def crates_of_page(text):
    """The rows of the table of crates: name -> crates that it says are used."""
    rows = re.findall(r"^\| `([\w-]+)` \|[^\n]*\|([^|\n]*)\|$", section(text, "The crates"), re.M)
    return {name: set(re.findall(r"`([\w-]+)`", uses)) for name, uses in rows}


def crates_of_tree(root=ROOT):
    """Crates and those of ours that each depends on, by their folders."""
    manifests = {path.parent.name: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(root.glob("crates/*/Cargo.toml"))}
    folders = {manifest["package"]["name"]: folder for folder, manifest in manifests.items()}
    return {folder: {folders[name] for name in manifest.get("dependencies", {}) if name in folders} for folder, manifest in manifests.items()}


def crates(text_of, tree=None):
    """Problems of the table of crates."""
    page, tree = crates_of_page(text_of(CRATES_PAGE)), tree or crates_of_tree()
    if not page or not tree:
        raise Blind(f"{CRATES_PAGE}: no table of crates")
    problems = [f"{CRATES_PAGE}: the crate {crate} is not in the table of crates" for crate in sorted(set(tree) - set(page))]
    problems += [f"{CRATES_PAGE}: there is no crate {crate}" for crate in sorted(set(page) - set(tree))]
    for crate in sorted(set(page) & set(tree)):
        for kind, names in (("uses", tree[crate] - page[crate]), ("does not use", page[crate] - tree[crate])):
            problems += [f"{CRATES_PAGE}: {crate} {kind} {name}" for name in sorted(names)]
    return problems


def structs(texts):
    return {name: body for text in texts for name, body in STRUCT.findall(text)}


def options_of(name, known):
    """Long options of a struct of clap's and of those that it contains; not the hidden ones."""
    found = set()
    for attributes, field, kind in FIELD.findall(known.get(name, "")):
        if "flatten" in attributes:
            found |= options_of(re.sub(r"\w+::", "", kind).strip(), known)
        long = LONG.search(attributes)
        if long and "hide = true" not in attributes:
            found.add(long[1] or field.replace("_", "-"))
    return found


# Commands of which a page lists all options: the struct of its arguments, the heading of the section.
LISTED = {"run": ("RunCommand", "Running a program")}


def options(text_of, sources):
    """Options of `aviary run` that its table in the user guide lacks, and rows of options that do not exist."""
    known, problems = structs(map(text_of, sources)), []
    for command, (struct, heading) in LISTED.items():
        there = options_of(struct, known)
        rows = set(re.findall(r"^\| `--([\w-]+)", section(text_of(OPTIONS_PAGE), heading), re.M))
        if not there or not rows:
            raise Blind(f"{OPTIONS_PAGE}: no options of `aviary {command}` in the table or in {struct}")
        problems += [f"{OPTIONS_PAGE}: `aviary {command}` has --{name}, which its table lacks" for name in sorted(there - rows)]
        problems += [f"{OPTIONS_PAGE}: `aviary {command}` has no --{name}" for name in sorted(rows - there)]
    return problems


def undescribed(text_of, sources, pages):
    """Options of any command that no page names."""
    text = "\n".join(map(text_of, pages))
    named = set(re.findall(r"--([a-z][\w-]*)", text))
    found = set()
    for source in sources:
        for name in structs([text_of(source)]):
            found |= options_of(name, structs([text_of(source)])) - named
    return {f"--{name}": 1 for name in found}
