"""BTC against hashlib: the first nonce whose double SHA-256 is small enough, or the last one tried."""

import hashlib


def case(random, lines):
    head, first = random.bytes(76), int(random.integers(0, 1 << 31))
    limit = 4 * lines
    bits = int(random.integers(3, 9))
    for nonce in range(first, first + limit):
        once = hashlib.sha256(head + nonce.to_bytes(4, "little")).digest()
        number = hashlib.sha256(once).digest()
        found = int.from_bytes(number, "little") >> (256 - bits) == 0
        if found:
            break
    header = (head + first.to_bytes(4, "little")).ljust(128, b"\0")
    result = number + nonce.to_bytes(4, "little") + bytes([found])
    return header, result.ljust(64, b"\0"), {"BITS": bits, "LIMIT": limit}


def endless(_lines, _source):
    # No hash has as many zeros.
    return b"", {"BITS": 256, "LIMIT": 0xFFFFFFFF}, ["TRIED"]
