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
    "its API server does not listen",
    "library still works on outputs",
    "printed what no answer has carried yet",
    "not now",
)


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
    # Of the program's process.
    environment: tuple = ()
    # Its output without Aviary is what it must print. False: it runs under Aviary only, and its status says if all was right.
    native: bool = True

    @property
    def title(self):
        return "-".join((self.name, *self.arguments))

    def expects(self, reason):
        return any(part in reason for part in (*PASSING, *self.lasting))


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
    Program("minted", ("200",)),
    Program("descriptors", moves=False),
    # 20,000 changes of one device.
    Program("control", every=(7, 100)),
    Program("remoted", native=False, sample=True),
    Program("referred", ("200",), native=False),
    Program("unmade", native=False, options=("--limit", "device_memory=1000"), sample=True),
    Program("quota", ("123456",), native=False, options=("--limit", "device_memory=123456")),
    # An arena that is always full.
    Program("scarce", native=False, environment=(("AVIARY_ARENA", "16M"),), every=(7, 100)),
    Program("programs", ("remoted",), native=False, options=("--limit", "device_memory=1000")),
    Program("structs", ("remoted",), native=False),
    Program("flows", ("remoted",), native=False, moves=False, options=("--limit", "device_memory=34000")),
    Program(
        "reports", ("remoted",), native=False, options=("--limit", "device_memory=1000"),
        lasting=("what it tells of happened elsewhere",),
    ),
)

# Programs of testapi's tests that do not run with moves.
EXCLUDED = {
    "process": "prints the process id of its API server, which moves change",
    "hold": "waits to be killed; `operator` moves it",
    "hostile": "writes over shared memory at random",
    "churn": "measures the memory of one API server's process",
    "accelerate": "needs the simulated card",
    "nuisance": "works until it is killed, and prints nothing to compare",
}
