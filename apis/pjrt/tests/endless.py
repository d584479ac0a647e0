"""Computes the same sum until its input ends, and once more: a sum that differs is `wrong`."""
import sys
import threading

import jax
import jax.numpy as jnp

f = jax.jit(lambda x: jnp.sum(x * 2))
x = jnp.arange(1000.0)
expected = float(f(x))
print("working", expected, flush=True)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.is_set():
    if float(f(x)) != expected:
        print("wrong", flush=True)
if float(f(x)) != expected:
    print("wrong", flush=True)
print("over", flush=True)
