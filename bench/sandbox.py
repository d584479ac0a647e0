"""Cost of a sandbox: attach, calls and bulk data on a node with sandboxes against one without, by turns."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.process import AVIARY, HANG, wait_until
from measure import ROUNDS, compile_c, measured, medians, test_library

# Attaches of one turn.
ATTACHES = 20
# Time in which a taken spare is replaced, so that each attach finds one.
PAUSE = 0.25


class Side:
    """A node in one mode."""

    def __init__(self, folder, mode, environment):
        self.address = f"unix:{folder}/{mode}.sock"
        self.log = open(folder / f"{mode}.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [AVIARY, "serve", "--listen", self.address, "--sandbox", mode], env=environment, stdout=self.log, stderr=self.log
        )
        wait_until(HANG, "the node listens", lambda: (folder / f"{mode}.sock").exists())
        time.sleep(1)

    def measured(self, api, program, *arguments, env):
        return measured([AVIARY, "run", "--api", api, "--server", self.address, "--", program, *arguments], env=env)

    def end(self):
        self.process.terminate()
        self.process.wait(HANG)
        self.log.close()


def sandbox(quick):
    import os

    calls, library = test_library()
    bulk = compile_c("bulk", "-lOpenCL")
    turns = 2 if quick else ROUNDS
    attaches = {"on": [], "off": []}
    results = {"on": [], "off": []}
    with tempfile.TemporaryDirectory(prefix="aviary-bench.") as folder:
        sides = {mode: Side(Path(folder), mode, {**os.environ, **library}) for mode in attaches}
        for turn in range(turns):
            for mode in sorted(sides, reverse=turn % 2 == 1):
                for _ in range(ATTACHES):
                    attaches[mode].append(sides[mode].measured("testapi", calls, "200", env=library)["attach_ms"])
                    time.sleep(PAUSE)
                timed = sides[mode].measured("testapi", calls, "20000" if quick else "200000", env=library)
                data = sides[mode].measured("opencl", bulk, "0.1" if quick else "0.3", env=library)
                results[mode].append({**timed, **data})
        for side in sides.values():
            side.end()
    on, off = medians(results["on"]), medians(results["off"])
    figures = {f"sandbox.{key.removesuffix('_ns')}_ratio": on[key] / off[key] for key in on if key.endswith("_ns")}
    figures |= {f"sandbox.attach_{mode}_ms": statistics.median(times) for mode, times in attaches.items()}
    return figures | {"sandbox.attach_more_ms": figures["sandbox.attach_on_ms"] - figures["sandbox.attach_off_ms"]}


if __name__ == "__main__":
    import json

    print(json.dumps(sandbox("quick" in sys.argv), indent=1))
