#!/usr/bin/env python3
"""pack.py FILE=TARGET... >IMAGE: an initial file system (newc cpio, gzip) of these files, all executable."""

import gzip
import sys

count = 0


def entry(name, mode, data=b""):
    global count
    count += 1
    fields = [count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def main():
    folders, out = set(), []
    for argument in sys.argv[1:]:
        source, target = argument.split("=", 1)
        parts = target.strip("/").split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder not in folders:
                folders.add(folder)
                out.append(entry(folder, 0o40755))
        with open(source, "rb") as file:
            out.append(entry("/".join(parts), 0o100755, file.read()))
    for folder in {"proc", "sys", "dev", "tmp"} - folders:
        out.append(entry(folder, 0o40755))
    out.append(entry("TRAILER!!!", 0))
    with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as image:
        image.write(b"".join(out))
    sys.stdout.flush()


main()
