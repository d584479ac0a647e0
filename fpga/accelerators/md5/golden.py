"""MD5 against hashlib."""

import hashlib


def case(random, lines):
    message = random.bytes(max(0, lines * 64 - 20))
    padded = message + b"\x80" + bytes(-(len(message) + 9) % 64) + (8 * len(message)).to_bytes(8, "little")
    return padded, hashlib.md5(message).digest().ljust(64, b"\0"), {}
