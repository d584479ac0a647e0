"""SBL against scipy's Sobel filter with the edge repeated."""

import numpy
from scipy.ndimage import sobel


def case(random, lines):
    width = int(random.integers(1, min(16, lines) + 1))
    height = lines // width
    image = random.integers(0, 256, (height, width * 64), dtype=numpy.uint8)
    # Half of the image is nearly flat, so that not all results are clipped.
    image[height // 2:] //= 32
    wide = image.astype(int)
    sums = abs(sobel(wide, 0, mode="nearest")) + abs(sobel(wide, 1, mode="nearest"))
    return image.tobytes(), numpy.minimum(sums, 255).astype(numpy.uint8).tobytes(), {"WIDTH": width, "HEIGHT": height}


def endless(lines, _source):
    return b"", {"WIDTH": 16, "HEIGHT": lines // 16}, ["TAKEN"]
