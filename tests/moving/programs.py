"""The programs of testapi that run with moves, and those that do not, with the reason."""

from dataclasses import dataclass

# Reasons that pass by themselves: a call that does not return, a callback, a thread that ends.
PASSING = (
    "did not return within",
    "callback of the application is under way",
    "thread of the program has ended",
    "another session of the program has begun or ended",
    "a session of the program is still attaching",
    "the program has ended",
    "the session has not begun or is about to end",
    "its API server does not listen",
    "library still works on outputs",
    "printed what no answer has carried yet",
    "not now",
)

# The actions of a session after every n-th call (`AVIARY_TEST_MOVE_KIND`), and the node's line about each.
KINDS = {
    "move": r"moved from API server \d+ to \d+: (\d+) us, (\d+) bytes",
    "park": r"parked, from API server \d+ to \d+: (\d+) us, (\d+) bytes",
}
# Of sessions that move and are not parked.
UNPARKABLE = "and a park cannot try that first"


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

    @property
    def title(self):
        return "-".join((self.name, *self.arguments))

    def expects(self, reason):
        return any(part in reason for part in (*PASSING, UNPARKABLE, *self.lasting))


PROGRAMS = (
    Program("basic", sample=True),
    Program("values", sample=True),
    Program("passed", moves=False),
    Program("arrays", sample=True),
    Program("handles", sample=True, lasting=("ta_buffer_address, made again",)),
    Program("wander", ("2000",), sample=True),
    Program("markers", sample=True),
    Program("programs"),
    Program("structs", sample=True),
    Program("reports", lasting=("what it tells of happened elsewhere",)),
    Program("later", lasting=("a job cannot be begun in the middle",)),
    Program("callbacks", sample=True),
    Program("tables"),
    Program("large"),
    Program("loading", moves=False),
    Program("robust"),
    Program("threads", ("300",), sample=True),
    Program("order", ("2000",)),
    # Almost always some struct of it has a part in the API server.
    Program("flows", moves=False),
)

# Programs of testapi's tests that do not run with moves.
EXCLUDED = {
    "control": "20,000 changes of one device: hours at n = 1, and like `basic` otherwise",
    "process": "prints the process id of its API server, which moves change",
    "hold": "waits to be killed; `operator` moves it",
    "descriptors": "closes its descriptors; it makes three calls",
    "hostile": "writes over shared memory at random",
    "scarce": "an arena of 16 MiB that is always full: a part of --long in time",
    "churn": "measures the memory of one API server's process",
    "remoted": "prints errors of one process only",
    "referred": "is for Aviary only, and has not been tried with moves",
    "catalogs": "has not been tried with moves",
    "packed": "its objects keep a session where it is",
    "boards": "its cells are in two places",
    "chains": "has not been tried with moves",
    "outcomes": "has not been tried with moves",
    "unmade": "needs a limit and prints what the limit left",
    "minted": "measures the memory of one API server's process",
    "quota": "prints what the limit left: `limit` of `operator` checks limits",
    "accelerate": "needs the simulated card",
    "nuisance": "works until it is killed, and prints nothing to compare",
}
