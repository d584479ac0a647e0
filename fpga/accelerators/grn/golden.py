"""GRN bit by bit, and as a distribution."""

import numpy
from scipy.stats import kstest

MASK = (1 << 64) - 1


def words(seed, count):
    """So many words of the xorshift generator."""
    made, x = numpy.empty(count, dtype="<u8"), (seed ^ 0x9E3779B97F4A7C15) | 1
    for i in range(count):
        made[i] = x
        x ^= x << 13 & MASK
        x ^= x >> 7
        x ^= x << 17 & MASK
    return made


def case(random, lines):
    seed = int(random.integers(0, 1 << 63))
    parts = words(seed, lines * 16 * 3).view("<u2").reshape(lines * 16, 12)
    made = (parts.sum(axis=1, dtype=numpy.int64) - 393210).astype("<i4")
    result = kstest(made / 65536, "norm")
    if lines >= 64 and result.pvalue < 1e-6:
        raise ValueError(f"seed {seed} gives no normal distribution: {result}")
    return b"", made.tobytes(), {"COUNT": lines, "SEED": seed}


def endless(lines, _source):
    # No input: GRN would read it and drop it.
    return b"", {"COUNT": lines, "SEED": 1, "LINES": 0}, ["PUT"]
