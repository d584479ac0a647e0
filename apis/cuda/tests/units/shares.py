"""Whether two tenants with weights 1 and 3 shared a device so, as the node counted, and whether each waited while the other
had it.

usage: shares.py PS-BEFORE PS-AFTER LOG-OF-ONE LOG-OF-THREE
"""

import json
import sys

# Slices are few in so short a time, and a first one may be long.
LEAST, MOST = 0.18, 0.36


def used(path):
    with open(path, encoding="utf-8") as file:
        devices = json.load(file)[0]["devices"]
    return {tenant["tenant"]: tenant["used_ns"] for device in devices for tenant in device["tenants"]}


def batches(path):
    with open(path, encoding="utf-8") as file:
        return [tuple(map(int, line.split())) for line in file]


before, after = used(sys.argv[1]), used(sys.argv[2])
one, three = (after[name] - before.get(name, 0) for name in ("one", "three"))
logs = batches(sys.argv[3]), batches(sys.argv[4])
share = one / (one + three)
# Somebody who waits for slices of others has batches that take longer than those in the middle of its own.
longest = [max(end - begin for begin, end in log) / 1e6 for log in logs]
print(f"device time {one / 1e9:.2f} s and {three / 1e9:.2f} s: {share:.3f} for the first; batches up to {longest[0]:.1f} and {longest[1]:.1f} ms")
sys.exit(not (LEAST < share < MOST and min(longest) > 3))
