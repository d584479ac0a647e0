"""GAU against scipy's convolution with the edge repeated."""

import numpy
from scipy.ndimage import convolve


def case(random, lines):
    width = int(random.integers(1, min(16, lines) + 1))
    height = lines // width
    image = random.integers(0, 256, (height, width * 64), dtype=numpy.uint8)
    sums = convolve(image.astype(int), numpy.outer((1, 2, 1), (1, 2, 1)), mode="nearest")
    return image.tobytes(), (sums >> 4).astype(numpy.uint8).tobytes(), {"WIDTH": width, "HEIGHT": height}


def endless(lines, _source):
    return b"", {"WIDTH": 16, "HEIGHT": lines // 16}, ["TAKEN"]
