"""Rules of the house that read Rust: circles of files, imports through lib.rs, error texts that are written twice."""

import re
from collections import Counter, defaultdict
from pathlib import Path

TESTS = re.compile(r"_tests?\.rs$|(^|/)tests?\.rs$|_model\.rs$|(^|/)tests/|_tests/")
USE = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))?[ \t]+)?use\s+([^;]+);", re.M)
EXPORT = re.compile(r"^[ \t]*pub(?:\([^)]*\))?[ \t]+use\s+[^;]+;", re.M)
INLINE = re.compile(r"(?<![\w:$])((?:crate|super)(?:::[A-Za-z_]\w*)+)")
TEST_MODULE = re.compile(r"^#\[cfg\((?:all\()?test\b[^\n]*\]\s*\n(?:#[^\n]*\n)*(?:pub )?mod \w+ \{", re.M)
COMMENT = re.compile(r"^\s*//.*$", re.M)
# The text of a doc comment, and the same in an attribute below it.
DOUBLED = re.compile(r'^[ \t]*///[ ]?(?P<text>[^\n]*)\n(?:[ \t]*///[^\n]*\n)*?[ \t]*#\[error\(\s*"(?P<error>(?:[^"\\]|\\.)*)"', re.M)


def product(files):
    """Source files of each crate, without tests: crate -> paths."""
    found = defaultdict(list)
    for path in files:
        if path.suffix == ".rs" and len(path.parts) > 3 and path.parts[0] == "crates" and path.parts[2] == "src" and not TESTS.search("/".join(path.parts[3:])):
            found[path.parts[1]].append(path)
    return found


def module_of(path):
    """crates/x/src/a/b.rs is (a, b), crates/x/src/lib.rs is ()."""
    parts = list(path.parts[3:])
    parts[-1] = parts[-1].removesuffix(".rs")
    return tuple(parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts)


def split(text):
    """The parts of a list, commas in braces apart."""
    parts, depth, last = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append(text[last:at])
            last = at + 1
    return [part.strip() for part in [*parts, text[last:]] if part.strip()]


def paths_of(tree):
    """`a::{b, c::D}` names a::b and a::c::D."""
    tree = tree.strip()
    at = tree.find("{")
    if at < 0:
        return [tree.split(" as ")[0].strip()]
    return [tree[:at] + path for part in split(tree[at + 1:tree.rindex("}")]) for path in paths_of(part)]


def without_tests(text):
    start = TEST_MODULE.search(text)
    return COMMENT.sub("", text[:start.start()] if start else text)


def absolute(words, module, modules):
    """A path of words as seen in a module, from the root of the crate; None if it leads out of the crate."""
    here = module
    if words[0] == "crate":
        return words[1:]
    if words[0] not in ("self", "super"):
        return (*here, *words) if (*here, words[0]) in modules else None
    for word in words:
        if word == "super":
            here = here[:-1]
        elif word != "self":
            break
    rest = [word for word in words if word not in ("self", "super")]
    return (*here, *rest)


class Crate:
    """The modules of a crate and who uses whom."""

    def __init__(self, paths, text_of):
        self.texts = {module_of(path): without_tests(text_of(path)) for path in paths}
        self.exported = {}
        for tree in USE.findall(self.texts.get((), "")):
            for path in paths_of(tree):
                words = tuple(path.split("::"))
                target = self.holder(absolute(words, (), self.texts))
                if target and words[-1] != "*":
                    self.exported[words[-1]] = target

    def holder(self, words):
        """The longest beginning of a path that is a module."""
        if words is None:
            return None
        return next(tuple(words[:length]) for length in range(len(words), -1, -1) if tuple(words[:length]) in self.texts)

    def uses(self):
        """Modules that each module uses, and how many imports lead through lib.rs."""
        edges, through = defaultdict(set), 0
        for module, text in self.texts.items():
            # lib.rs does not use names that it only passes on.
            text = EXPORT.sub("", text) if module == () else text
            paths = [path for tree in USE.findall(text) for path in paths_of(tree)] + INLINE.findall(USE.sub("", text))
            for path in paths:
                words = absolute(tuple(path.split("::")), module, self.texts)
                target = self.holder(words)
                if target == () and module != () and words and words[0] in self.exported:
                    target, through = self.exported[words[0]], through + 1
                if target is not None and target != module:
                    edges[module].add(target)
        return edges, through


def circles(edges):
    """Groups of more than one node that reach each other."""
    def reached(node, by):
        seen, waiting = set(), [node]
        while waiting:
            for other in by.get(waiting.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen

    back = defaultdict(set)
    for node, others in edges.items():
        for other in others:
            back[other].add(node)
    groups, done = [], set()
    for node in sorted(edges):
        if node not in done:
            group = reached(node, edges) & reached(node, back)
            done |= group
            if len(group) > 1:
                groups.append(sorted(group))
    return groups


def files_in_circles(files, text_of):
    return {crate: sum(map(len, circles(Crate(paths, text_of).uses()[0]))) for crate, paths in product(files).items()}


def imports_through_lib(files, text_of):
    return {crate: Crate(paths, text_of).uses()[1] for crate, paths in product(files).items()}


def doubled_errors(files, text_of):
    """Errors whose text is in their doc comment and in their attribute, by crate: displaydoc needs it once."""
    found = Counter()
    plain = lambda text: re.sub(r"\W+", " ", text).strip().lower()
    for crate, paths in product(files).items():
        for path in paths:
            found[crate] += sum(plain(match["text"]) == plain(match["error"]) for match in DOUBLED.finditer(text_of(path)))
    return found


def shown(files, text_of):
    """The circles by name, for somebody who opens one."""
    for crate, paths in sorted(product(files).items()):
        for group in circles(Crate(paths, text_of).uses()[0]):
            print(f"{crate}: " + " ".join("::".join(module) or "lib" for module in group))


if __name__ == "__main__":
    from harness.house import text_of as read, tracked
    shown(tracked(), read)
