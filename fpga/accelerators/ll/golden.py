"""LL against a list that numpy scattered over memory."""

import numpy

LINE = 64
STREAMS = {}


def nodes(places, values, source, last):
    """Lines of the nodes at these places; the last one's next address is `last`."""
    memory = numpy.zeros((len(places), LINE // 8), dtype="<u8")
    following = source + LINE * places.astype(numpy.uint64)
    memory[places, 0] = numpy.append(following[1:], numpy.uint64(last))
    memory[places, 1] = values
    return memory.tobytes(), int(following[0])


def case(random, lines, source):
    values = random.integers(0, 1 << 64, lines, dtype=numpy.uint64)
    memory, head = nodes(random.permutation(lines), values, source, 0)
    # Some walks end before the last node, none in the first half.
    limit = int(random.integers(lines // 2 + 1, lines + 1)) if random.integers(2) else 0
    visited = limit or lines
    total = int(values[:visited].sum(dtype=numpy.uint64))
    return memory, b"", {"HEAD": head, "LIMIT": limit}, {"SUM": total, "VISITED": visited}


def endless(_lines, source):
    places = numpy.random.default_rng(1).permutation(4096)
    memory, head = nodes(places, numpy.ones(4096, dtype=numpy.uint64), source, source + LINE * int(places[0]))
    return memory, {"HEAD": head}, ["VISITED"]
