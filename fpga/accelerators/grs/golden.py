"""GRS against numpy."""

import numpy


def case(random, lines):
    pixels = random.integers(0, 256, (lines * 16, 4), dtype=numpy.uint8)
    gray = (pixels[:, :3].astype(int) @ (77, 150, 29)) >> 8
    expected = pixels.copy()
    expected[:, :3] = gray[:, None]
    return pixels.tobytes(), expected.tobytes(), {}
