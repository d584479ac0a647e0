"""GRN bit by bit, and as a distribution."""

import numpy
from scipy.stats import kstest

MASK = (1 << 64) - 1


def scattered(i):
    z = 0x9E3779B97F4A7C15 * (i + 1) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def case(random, lines):
    seed = int(random.integers(0, 1 << 63))
    x = numpy.array([(seed ^ scattered(i)) | 1 for i in range(48)], dtype=numpy.uint64)
    made = []
    for _ in range(lines):
        made.append(x.view("<u2").reshape(16, 12).sum(axis=1, dtype=numpy.int64) - 393210)
        for shift, left in ((13, True), (7, False), (17, True)):
            x ^= x << numpy.uint64(shift) if left else x >> numpy.uint64(shift)
    numbers = numpy.array(made, dtype="<i4")
    result = kstest(numbers.ravel() / 65536, "norm")
    if lines >= 64 and result.pvalue < 1e-6:
        raise ValueError(f"seed {seed} gives no normal distribution: {result}")
    return b"", numbers.tobytes(), {"COUNT": lines, "SEED": seed}
