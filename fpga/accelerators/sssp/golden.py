"""SSSP against scipy's Dijkstra."""

import numpy
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

NO_WAY = 0xFFFFFFFF


def graph(random, lines, nodes):
    """Edges that lead to nearby numbers, so that ways are long, and a few to nodes that are not there."""
    start = random.integers(0, nodes, 4 * lines)
    end = (start + random.integers(1, 8, 4 * lines)) % nodes
    length = random.integers(1, 1000, 4 * lines)
    end[random.random(4 * lines) < 0.02] = nodes
    return start, end, length


def case(random, lines):
    # Each pass looks at all edges again.
    lines = min(lines, 256)
    nodes, root = int(random.integers(16, 513)), int(random.integers(0, 16))
    start, end, length = graph(random, lines, nodes)
    edges = numpy.zeros((4 * lines, 4), dtype="<u4")
    edges[:, 0], edges[:, 1], edges[:, 2] = start, end, length
    table = numpy.full((nodes, nodes), numpy.inf)
    known = end < nodes
    numpy.minimum.at(table, (start[known], end[known]), length[known])
    found = dijkstra(csr_array(numpy.where(numpy.isinf(table), 0, table)), indices=root)
    distances = numpy.full(-(-nodes // 16) * 16, NO_WAY, dtype="<u4")
    distances[:nodes] = numpy.where(numpy.isinf(found), NO_WAY, found)
    return edges.tobytes(), distances.tobytes(), {"NODES": nodes, "ROOT": root}


def endless(_lines, _source):
    # More edges than a measurement looks at: the first pass does not end.
    return b"", {"NODES": 512, "ROOT": 0}, ["TAKEN"]
