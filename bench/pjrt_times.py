"""What calls of JAX cost, in ns: the median of many. Run natively and through Aviary by apis.py."""
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

add = jax.jit(lambda a, b: a * 2 + b)
small, other = jnp.arange(8.0), jnp.ones(8)
# About 0.1 ms on one CPU.
matrix = jnp.ones((128, 128))
multiply = jax.jit(lambda a: (a @ a) @ a)
data = jnp.ones((256, 512))
weights = [jnp.full((512, 1024), 0.01), jnp.full((1024, 512), 0.01)]


@jax.jit
def step(weights):
    loss = lambda w: jnp.mean((jnp.tanh(data @ w[0]) @ w[1] - data) ** 2)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def train():
    global weights
    weights = step(weights)
    weights[0].block_until_ready()


def median(act, after=lambda result: None, times=500):
    taken = []
    for turn in range(times + 20):
        begin = time.perf_counter_ns()
        result = act()
        taken.append(time.perf_counter_ns() - begin)
        after(result)
    return statistics.median(taken[20:])


print(json.dumps({
    "dispatch_ns": median(lambda: add(small, other), lambda result: result.block_until_ready()),
    "blocked_ns": median(lambda: add(small, other).block_until_ready()),
    "numpy_ns": median(lambda: np.asarray(add(small, other))),
    "multiply_ns": median(lambda: multiply(matrix).block_until_ready(), times=200),
    "step_ns": median(train, times=60),
}))
