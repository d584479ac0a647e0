"""NLB in the mode that copies: the output is the input."""

STREAMS = {"SOURCE": ["SRC_ADDR", 6], "TARGET": ["DST_ADDR", 6], "LINES": ["NUM_LINES", 0], "SCRATCH": ["DSM_BASE", 0]}


def case(random, lines):
    data = random.bytes(lines * 64)
    # Hints of channel and request size are ignored.
    return data, data, {"CFG": 0x42000}
