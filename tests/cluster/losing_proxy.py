"""Stands between one client and the API server, over plain HTTP, and loses one answer.

  losing_proxy.py PORT SERVER CA CERTIFICATE KEY PATH RELEASE

The first PUT to PATH reaches the API server, and its answer is thrown away, as when the server is killed between both. From then on
what watches would tell of resource claims is held back until the file RELEASE exists, as when a client has not connected again yet.
All else passes.
"""

import contextlib
import http.client
import http.server
import ssl
import sys
import threading
import time
from pathlib import Path

BLOCK = 1 << 16
POLL = 0.02
CLAIMS = "/resourceclaims?"
PORT, SERVER, CA, CERTIFICATE, KEY, PATH, RELEASE = sys.argv[1:]
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


def context():
    made = ssl.create_default_context(cafile=CA)
    made.load_cert_chain(CERTIFICATE, KEY)
    return made


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tls = context()
    lost = threading.Event()

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server = http.client.HTTPSConnection(SERVER, 443, context=self.tls)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP | {"host"}}
        losing = self.command == "PUT" and self.path.split("?")[0] == PATH and not self.lost.is_set()
        if losing:
            self.lost.set()
        try:
            server.request(self.command, self.path, body or None, headers)
            answer = server.getresponse()
            if losing:
                answer.read()
                print(f"lost the answer to {self.command} {self.path}: status {answer.status}", flush=True)
            else:
                self.pass_on(answer)
        except OSError as error:
            print(f"{self.command} {self.path}: {error}", flush=True)
        self.close_connection = True
        server.close()

    def pass_on(self, answer):
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        watches = CLAIMS in self.path and "watch=true" in self.path
        while block := answer.read1(BLOCK):
            while watches and self.lost.is_set() and not Path(RELEASE).exists():
                time.sleep(POLL)
            self.wfile.write(block)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = forward

    def log_message(self, *_):
        """Nothing of each request."""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that goes away is no error."""


with contextlib.suppress(KeyboardInterrupt):
    Server(("127.0.0.1", int(PORT)), Handler).serve_forever()
