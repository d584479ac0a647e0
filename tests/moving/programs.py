"""The programs of testapi that run with moves, and those that do not, with the reason."""

import re
import time
from dataclasses import dataclass

# Reasons that pass by themselves: a call that does not return, a callback, a thread that ends.
PASSING = (
    "did not return within",
    "callback of the application is running",
    "call of a thread that has ended",
    "another session of the program has begun or ended",
    "a session of the program is still attaching",
    "the program has ended",
    # At the end of a program, too: an API server that dies earlier shows in the output.
    "its API server has ended",
    "its API server is ending",
    "the session has not begun or is about to end",
    "its API server does not accept messages",
    "library still writes outputs",
    "the devices still execute earlier calls",
    # Another session of the program is being swapped, and may take all that there is.
    "(parked_memory or host_swap)",
    "output of the vendor library was not sent",
    "not now",
)

# The actions of a session after every n-th call (`AVIARY_TEST_MOVE_KIND`), and the node's line about each.
KINDS = {
    "move": r"moved from API server \d+ to \d+: (\d+) us, (\d+) bytes",
    "swap": r"swapped out: (\d+) us, (\d+) bytes",
    "park": r"parked, from API server \d+ to \d+: (\d+) us, (\d+) bytes",
}


@dataclass(frozen=True)
class Program:
    """One program with its arguments."""

    name: str
    arguments: tuple = ()
    # Of `aviary run`.
    options: tuple = ()
    # A part of ./x test without --long.
    sample: bool = False
    # It makes enough calls for at least one move, and nothing that cannot be moved.
    moves: bool = True
    # Reasons for not moving that are right for this program.
    lasting: tuple = ()
    # After how many calls it moves.
    every: tuple = (1, 7, 100)
    # Variables of its environment.
    environment: tuple = ()
    # Numbers of its output are measures, which no two runs have in common.
    measures: bool = False
    # False: its behaviour is that of a remoted program, so that it is compared with a run through Aviary that does not move.
    native: bool = True

    @property
    def title(self):
        return "-".join((self.name, *(argument for argument in self.arguments if not argument.startswith("+"))))

    def command(self, folder):
        """Arguments that begin with a plus are seconds from now."""
        now = time.monotonic()
        arguments = (f"{now + float(a)}" if a.startswith("+") else a for a in self.arguments)
        return [folder / self.name, *arguments]

    def compared(self, text):
        return re.sub(r"\d+", "N", text) if self.measures else text


PROGRAMS = (
    Program("basic", sample=True),
    Program("values", sample=True),
    Program("passed", moves=False),
    Program("arrays", sample=True),
    Program("extents"),
    Program("pointed"),
    Program("varied"),
    Program("stored"),
    Program("latches"),
    Program("handles", sample=True, lasting=("ta_buffer_address, repeated in the new API server",)),
    Program("wander", ("2000",), sample=True),
    Program("markers", sample=True),
    Program("programs"),
    Program("structs", sample=True),
    Program("reports"),
    Program("later", lasting=("a job cannot be begun in the middle",)),
    Program("callbacks", sample=True),
    Program("tables"),
    Program("large"),
    # The address of a buffer, which it asks for, is another one in another process.
    Program("crowd", ("6", "50000", "40"), lasting=("ta_buffer_address, repeated in the new API server",)),
    Program("loading", moves=False),
    Program("robust"),
    Program("threads", ("300",), sample=True),
    Program("order", ("2000",)),
    # Almost always some struct of it has a part in the API server.
    Program("flows", moves=False),
    Program("control", ("300",)),
    Program("process"),
    Program("descriptors", every=(1,)),
    Program("scarce", every=(1, 7), environment=(("AVIARY_ARENA", "16M"),), native=False),
    Program("churn", ("20",), native=False, lasting=("a job cannot be begun in the middle",)),
    Program("accelerate", ("1", "20000-90000", "8", "0", "+0.5", "+1.5"), every=(7, 100), measures=True),
    Program("packed", sample=True),
    # Of its calls most are refused in its own process.
    Program("packed", ("remoted",), every=(1,), native=False),
    # A board that a later call of `ta_board_pin` has taken down cannot be asked for again.
    Program("boards", sample=True, lasting=("ta_board_pinned, repeated in the new API server",)),
    Program("boards", ("remoted",), native=False, lasting=("ta_board_pinned, repeated in the new API server",)),
    Program("remoted", every=(1,), native=False),
    Program("remoted", ("sync",), every=(1,), environment=(("AVIARY_SYNC", "1"),), native=False),
    Program("referred", ("200",), sample=True, native=False),
    Program("catalogs", every=(1,)),
    Program("catalogs", ("remoted",), every=(1,), native=False),
    Program("chains", every=(1,)),
    Program("chains", ("remoted",), every=(1,), native=False),
    Program("outcomes", every=(1,)),
    Program("outcomes", ("remoted",), every=(1,), options=("--limit", "device_memory=1000"), native=False),
    Program("unmade", ("50",), options=("--limit", "device_memory=1000"), native=False),
    Program("unmade", ("sync",), options=("--limit", "device_memory=1000"), environment=(("AVIARY_SYNC", "1"),), native=False),
    Program("minted", ("1000",)),
    Program("quota", ("20500",), options=("--limit", "device_memory=20500"), native=False),
    Program("programs", ("remoted",), options=("--limit", "device_memory=1000"), native=False),
    Program("structs", ("remoted",), native=False),
    Program("flows", ("remoted",), options=("--limit", "device_memory=34000"), native=False),
    Program("reports", ("remoted",), options=("--limit", "device_memory=1000"), native=False),
)

# Programs of testapi's tests that print nothing which could be compared. Other cases move them.
EXCLUDED = {
    "hold": "waits to be killed: the cases of operators move it",
    "hostile": "writes over shared memory at random: hostile_cases.py moves it beside a program that notices nothing",
    "pending": "waits until its API server has been ended, as testapi's own tests do",
    "nuisance": "works until it is killed: hostile_cases.py moves it in the same way",
}
