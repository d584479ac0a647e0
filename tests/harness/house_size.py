"""Rules of the house about sizes: how many source files a folder has, how long a file and a function are."""

import re
from collections import Counter

from harness import house_rust

MOST_FILES, MOST_LINES, MOST_OF_FUNCTION = 12, 600, 60
# As rustfmt writes it: a function ends at the first brace below it that is where its first word is.
FUNCTION = re.compile(r'^(?P<indent>[ \t]*)(?:pub(?:\([^)]*\))? )?(?:default )?(?:const )?(?:async )?(?:unsafe )?(?:extern "[^"]*" )?fn (?P<name>\w+)')


TEST_FILE = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*mod (\w+);", re.M)


def sources(files):
    """Product files of Rust, without tests by their names."""
    return [path for paths in house_rust.product(files).values() for path in paths]


def of_tests(paths, text_of):
    """Files that their folder's lib.rs or mod.rs has for tests only."""
    return {path.parent / f"{name}.rs" for path in paths if path.name in ("lib.rs", "mod.rs") for name in TEST_FILE.findall(text_of(path))}


def full_folders(files):
    """Files of a folder above those that it may have; its own subfolders count for themselves."""
    found = Counter(str(path.parent) for path in sources(files))
    return {folder: count - MOST_FILES for folder, count in found.items() if count > MOST_FILES}


def long_files(files, text_of):
    return {str(path): 1 for path in sources(files) if text_of(path).count("\n") > MOST_LINES}


def functions(text):
    """Names and lengths in lines of functions; those without a body, and those of one line, have none that counts."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        start = FUNCTION.match(line)
        if not start:
            continue
        head = next((below for below in range(at, len(lines)) if lines[below].rstrip()[-1:] in ("{", ";", "}")), at)
        if lines[head].rstrip().endswith("{"):
            end = next((below for below in range(head, len(lines)) if lines[below].startswith(start["indent"] + "}")), head)
            yield start["name"], end - at + 1


def long_functions(files, text_of):
    """Functions that are too long, by file."""
    found, paths = Counter(), sources(files)
    for path in set(paths) - of_tests(paths, text_of):
        found[str(path)] += sum(length > MOST_OF_FUNCTION for _, length in functions(house_rust.without_tests(text_of(path))))
    return {path: count for path, count in found.items() if count}
