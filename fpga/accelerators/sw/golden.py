"""SW against the table of the algorithm, row by row."""

import numpy


def score(query, text):
    best, above = 0, numpy.zeros(len(text) + 1, dtype=int)
    for letter in query:
        row = numpy.maximum(0, above - 1)
        row[1:] = numpy.maximum(row[1:], above[:-1] + numpy.where(text == letter, 2, -1))
        for i in range(1, len(row)):
            row[i] = max(row[i], row[i - 1] - 1)
        best, above = max(best, int(row.max())), row
    return best


def case(random, lines):
    query = random.choice(list(b"ACGT"), 64).astype(numpy.uint8)
    text = random.choice(list(b"ACGT"), max(1, min(lines, 40)) * 64).astype(numpy.uint8)
    # A part of the query with errors is somewhere in the text.
    place = int(random.integers(0, len(text) - 40))
    text[place:place + 40] = query[10:50]
    text[place + 13] = ord("N")
    return query.tobytes() + text.tobytes(), score(query, text).to_bytes(2, "little").ljust(64, b"\0"), {}
