"""SHA-512 against hashlib."""

import hashlib


def case(random, lines):
    message = random.bytes(max(0, lines * 64 - 50))
    padded = message + b"\x80" + bytes(-(len(message) + 17) % 128) + (8 * len(message)).to_bytes(16, "big")
    return padded, hashlib.sha512(message).digest(), {}
