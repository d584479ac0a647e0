"""Works once, then once for each line of standard input, and prints the results."""

import sys


def run(work):
    print("ready", work(), flush=True)
    for _ in sys.stdin:
        print("done", work(), flush=True)
