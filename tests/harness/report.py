"""What a test script prints: a line for each check, and as its last line the counts that the runner reads."""

import time
import traceback

from harness.process import Failure, Skipped


class Report:
    """Counts the checks of one script."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    def check(self, holds, name, detail=""):
        """One check; `detail` is shown when it fails. Returns `holds`."""
        if holds:
            self.passed += 1
            print(f"ok   {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL {name}\n     " + str(detail).strip().replace("\n", "\n     "), flush=True)
        return bool(holds)

    @staticmethod
    def skip(name, why):
        """A check that this machine has not what for."""
        print(f"skip {name}: {why}", flush=True)

    def case(self, name, function, *arguments):
        """A check that is a function: it fails by raising. Returns if it passed."""
        began = time.monotonic()
        try:
            function(*arguments)
        except Skipped as why:
            self.skip(name, why)
            return True
        except Exception as error:  # pylint: disable=broad-except
            detail = str(error) if isinstance(error, Failure) else traceback.format_exc()
            return self.check(False, f"{name} ({time.monotonic() - began:.1f} s)", detail)
        return self.check(True, f"{name} ({time.monotonic() - began:.1f} s)")

    def finish(self):
        """Prints the counts and returns the script's exit status."""
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 1 if self.failed else 0


def selected(cases, names, others=None):
    """The cases (name -> function) of these names; all if none are given. A name is a case's, or the beginning of several.

    `others` are cases too, chosen by their whole names or where no case of `cases` begins so. A name of none is an error.
    """
    others = others or {}
    if not names:
        return list(cases.items())
    wanted = set()
    for name in names:
        found = [[one for one in (*cases, *others) if one == name], *([one for one in group if one.startswith(name)] for group in (cases, others))]
        wanted.update(next((group for group in found if group), []))
        if not any(found):
            raise SystemExit(f"no case begins with {name}; there is: {' '.join((*cases, *others))}")
    return [(name, case) for name, case in (cases | others).items() if name in wanted]
