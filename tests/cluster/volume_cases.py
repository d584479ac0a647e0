"""Many claims on many nodes, while plugins, daemons and the API server are killed at random."""

import os
import tempfile
import time

from volume_nodes import Volume

SEED = int(os.environ.get("AVIARY_SEED", "1"))


def volume(nodes, claims):
    """At the end nothing is left of any claim, and at no time was more given than there is."""
    made = Volume(tempfile.mkdtemp(prefix="avk-"), nodes)
    began = time.monotonic()
    try:
        made.up()
        ready = time.monotonic()
        load = made.load(claims, SEED)
        made.harm(SEED, lambda: load.poll() is None)
        said = (made.folder / "log/control-double").read_text(encoding="utf-8").splitlines()[-2:]
        print(f"    seed {SEED}, {nodes} nodes up in {ready - began:.0f} s; {'; '.join(said)}; killed {made.killed}; at most {made.most}% "
              f"granted, {made.most_promised}% promised, above 100 in {made.promised_twice} looks, each with a claim in doubt "
              f"({len(made.claims_in_doubt())} in all); {time.monotonic() - ready:.0f} s")
        if load.returncode:
            raise AssertionError(f"the double ended with status {load.returncode}: {said}")
        made.has_nothing_left()
    finally:
        made.down()
