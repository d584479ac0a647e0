"""Calls of the program's thread that wait for the API server, for each of some operations of JAX. AVIARY_TRACE names the file that
counts them. (A thread of the guest library waits for what is over.)"""
import collections
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

TIMES = 100
f = jax.jit(lambda a, b: a * 2 + b)
x, y = jnp.arange(8.0), jnp.ones(8)
host = np.ones(8, "f4")


def dispatch():
    return f(x, y)


def blocked():
    f(x, y).block_until_ready()


def to_numpy():
    np.asarray(f(x, y))


def device_put():
    jax.device_put(host).block_until_ready()


def waited():
    """Functions of the calls that have waited so far. The lines have the time, process and thread before the function."""
    with open(os.environ["AVIARY_TRACE"]) as lines:
        return collections.Counter(line.split()[3] for line in lines if "waited" in line and line.split()[1] == line.split()[2])


for operation in (dispatch, blocked, to_numpy, device_put):
    for _ in range(5):
        jax.block_until_ready(operation())
    before = waited()
    for _ in range(TIMES):
        operation()
    functions = waited() - before
    shown = ", ".join(f"{name.rpartition('.')[2]} {count / TIMES:.1f}" for name, count in functions.most_common() if count * 20 > TIMES)
    print(operation.__name__, round(functions.total() / TIMES, 1), shown if "-v" in sys.argv else "", flush=True)
