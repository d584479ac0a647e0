"""AES-128 against openssl."""

import subprocess


def case(random, lines):
    key, plain = random.bytes(16), random.bytes(lines * 64)
    encrypted = subprocess.run(["openssl", "enc", "-aes-128-ecb", "-nopad", "-K", key.hex()], input=plain, capture_output=True, check=True)
    halves = {"KEY_LOW": int.from_bytes(key[:8], "little"), "KEY_HIGH": int.from_bytes(key[8:], "little")}
    return plain, encrypted.stdout, halves
