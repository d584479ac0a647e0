"""What parts of `./x test` cost: CPU and wall seconds, of the last time that each passed.

tests/harness/costs.json has them for a fresh clone (`./x test --keep-costs` writes it), target/tests/costs.json those of this
machine, written by every run.
"""

import json
import os

from harness.process import ROOT

KEPT = ROOT / "tests/harness/costs.json"
OWN = ROOT / "target/tests/costs.json"
# A part that has never run here.
UNKNOWN = {"cpu": 60.0, "wall": 120.0}
# CPU seconds that any part may use, and how many times what it usually costs: a slow machine, an emulated CPU.
LEAST_LIMIT, FACTOR = 900, 5


class Costs:
    """The costs of parts by name."""

    def __init__(self, known):
        self.known = dict(known)

    @staticmethod
    def read():
        found = {}
        for path in (KEPT, OWN):
            if path.exists():
                found.update(json.loads(path.read_text(encoding="utf-8")))
        return Costs(found)

    def wall(self, name):
        return self.known.get(name, UNKNOWN)["wall"]

    def share(self, name):
        """CPUs that a part keeps busy, at most one: two parts may always run at the same time."""
        cost = self.known.get(name, UNKNOWN)
        return min(1.0, cost["cpu"] / max(cost["wall"], 0.1))

    def limit(self, name):
        """CPU seconds after which a part is taken for one that never ends."""
        return max(LEAST_LIMIT, FACTOR * self.known.get(name, UNKNOWN)["cpu"])

    def learn(self, name, cpu, wall):
        self.known[name] = {"cpu": round(cpu, 1), "wall": round(wall, 1)}

    def write(self, path, names):
        """Those of parts that there are."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{json.dumps(name)}: {json.dumps(self.known[name])}" for name in sorted(names) if name in self.known]
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        os.replace(written, path)
