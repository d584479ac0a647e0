"""Connections that want to resume sessions which are not theirs, and nonsense: forged.py HOST PORT FOLDER-OF-TLS-INIT.

Ends with 0 if none was taken and each honest-looking one was told that the session has ended."""

import os
import socket
import ssl
import struct
import sys

HOST, PORT, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3]
RESUME, WELCOME = 11, 2


def connect(tenant):
    context = ssl.create_default_context(cafile=os.path.join(FOLDER, tenant, "ca.pem"))
    context.load_cert_chain(os.path.join(FOLDER, tenant, "tenant.pem"), os.path.join(FOLDER, tenant, "tenant.key"))
    plain = socket.create_connection((HOST, PORT), timeout=600)
    return context.wrap_socket(plain, server_hostname="localhost")


def field(data):
    return struct.pack("<Q", len(data)) + data


def resume(version=3, token=b"", session=None, ticket=b"", number=1, received=0, joins=0):
    session = os.urandom(16) if session is None else session
    body = b"AVresume" + struct.pack("<Q", version) + field(token) + field(session) + field(ticket)
    return body + struct.pack("<QQQ", number, received, joins)


def packet(payload, kind=RESUME):
    frame = struct.pack("<BBHII", kind, 0, 0, 0, len(payload)) + payload
    return struct.pack("<I", len(frame)) + frame


def answer(data, tenant="tenant-alice"):
    """The packet of the node's Welcome. None: it closed the connection."""
    with connect(tenant) as link:
        link.sendall(data)
        received = b""
        while True:
            try:
                piece = link.recv(4096)
            except (ConnectionError, ssl.SSLError):
                break
            if not piece:
                break
            received += piece
    return received if len(received) > 16 and received[4] == WELCOME else None


def main():
    wrong = 0
    forged = [resume(), resume(ticket=os.urandom(32), received=2**64 - 1), resume(session=bytes(16))]
    forged.append(resume(ticket=os.urandom(32), received=1, joins=1))
    forged = [packet(data) for data in forged]
    nonsense = [resume(version=1), resume(version=2), resume(session=b"short"), resume(ticket=b"x"), b"", os.urandom(500)]
    nonsense = [packet(data) for data in nonsense] + [packet(resume(), kind) for kind in (12, 13)]
    for data in forged:
        told = answer(data)
        wrong += told is None or b"the session has ended" not in told
        print("forged:", told)
    for data in nonsense:
        told = answer(data)
        print("nonsense:", told)
        wrong += told is not None and b"the session has ended" in told
    sys.exit(wrong > 0)


main()
