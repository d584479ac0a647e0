"""VADD against numpy."""

import numpy


def case(random, lines):
    # Both vectors have a line at least.
    pairs = random.integers(0, 1 << 32, (max(1, lines // 2), 2, 16), dtype=numpy.uint32)
    return pairs.tobytes(), pairs.sum(axis=1, dtype=numpy.uint32).tobytes(), {}
