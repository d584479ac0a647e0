"""MB against numpy: the hash of what it read, and what it wrote where."""

import numpy

READS, WRITES = 4, 8
STREAMS = {"SOURCE": ["BASE", 0], "TARGET": ["TARGET", 0]}


def case(random, lines):
    burst = int(random.choice([1, 2, 4]))
    count = max(1, lines // burst)
    mask = (1 << (max(lines, burst) - 1).bit_length()) - 1
    # Odd numbers of bursts apart: no line is written twice.
    stride = burst * (int(random.integers(1 << 16)) * 2 + 1)
    memory = random.integers(0, 1 << 64, (mask + 1, 8), dtype=numpy.uint64)
    places = numpy.arange(count, dtype=numpy.uint64) * stride & 0xFFFFFFFF
    masked = places.astype(int) & mask & ~(burst - 1)
    read = (masked[:, None] + numpy.arange(burst)).ravel()
    digest = int(numpy.bitwise_xor.reduce(memory[read], axis=1).sum(dtype=numpy.uint64))
    written = numpy.zeros((mask + 1, 8), dtype="<u8")
    for beat in range(burst):
        written[masked + beat] = (places << numpy.uint64(32) | numpy.uint64(beat))[:, None]
    registers = {"MASK": mask, "STRIDE": stride, "COUNT": count, "MODE": READS | WRITES | burst - 1}
    results = {"HASH": digest, "LINES": count * burst, "WRITTEN": count}
    return memory.astype("<u8").tobytes(), written.tobytes(), registers, results


def endless(_lines, _source):
    # Steps that spread over all of 8 MB.
    registers = {"MASK": 0x1FFFF, "STRIDE": 0x9E3779B1, "MODE": READS | WRITES}
    return b"", registers, ["LINES", "WRITTEN"]
