"""Rules of the house that read the C of APIs: circles of files, each of which calls another one's functions."""

import re
from collections import defaultdict

from harness.house_rust import circles

# What decides nothing about who calls whom.
IGNORED = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
# Functions that other files may call, where they are defined: at the beginning of a line, with their body.
DEFINED = re.compile(r"^(?!static\b|typedef\b|extern\b|return\b)[A-Za-z_][\w \t*]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)
WORD = re.compile(r"\b[A-Za-z_]\w+\b")


def sides(files):
    """The C files of each side of each API: `apis/NAME/guest`, `apis/NAME/server` -> paths."""
    found = defaultdict(list)
    for path in files:
        if path.suffix == ".c" and len(path.parts) == 4 and path.parts[0] == "apis" and path.parts[2] in ("guest", "server"):
            found["/".join(path.parts[:3])].append(path)
    return found


def uses(texts):
    """Names of files -> names of those whose functions they call."""
    texts = {name: IGNORED.sub(" ", text) for name, text in texts.items()}
    holders = {function: name for name, text in texts.items() for function in DEFINED.findall(text)}
    edges = defaultdict(set)
    for name, text in texts.items():
        edges[name] = {holders[word] for word in WORD.findall(text) if word in holders} - {name}
    return edges


def files_in_circles(files, text_of):
    return {side: sum(map(len, circles(uses({path.name: text_of(path) for path in paths})))) for side, paths in sides(files).items()}
