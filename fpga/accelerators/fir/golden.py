"""FIR against scipy's filter, with clipping."""

import numpy
from scipy.signal import lfilter


def case(random, lines):
    samples = random.integers(-(1 << 15), 1 << 15, lines * 32, dtype=numpy.int16)
    # Loud enough that some results are clipped.
    taps = random.integers(-12_000, 12_000, 16, dtype=numpy.int16)
    sums = numpy.rint(lfilter(taps.astype(float), 1, samples.astype(float))).astype(numpy.int64)
    expected = numpy.clip(sums >> 15, -(1 << 15), (1 << 15) - 1).astype("<i2")
    words = taps.astype("<i2").view("<u8")
    return samples.astype("<i2").tobytes(), expected.tobytes(), {f"TAPS{i}": word for i, word in enumerate(words)}
