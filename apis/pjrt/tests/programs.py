"""Small JAX programs of several kinds. Each prints its numbers with all their digits, and the platform that computed them."""
import sys

import jax
import jax.numpy as jnp
import numpy as np

np.set_printoptions(floatmode="unique", threshold=10000)


def show(name, value):
    print(name, *(np.asarray(leaf).tolist() for leaf in jax.tree.leaves(value)), flush=True)


def jit():
    a = jnp.arange(12.0).reshape(3, 4)
    show("sum", jax.jit(jnp.add)(a, 2.0))
    show("product", jax.jit(jnp.matmul)(a, a.T))
    show("integers", jax.jit(lambda x: (x * 3 // 2, x % 5, x << 2))(jnp.arange(-4, 5)))
    show("half", jax.jit(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) / 3)(jnp.linspace(0, 1, 9)))
    show("empty", jax.jit(lambda x: x * 2)(jnp.zeros((0, 3))))


def grad():
    def loss(w, x, y):
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

    key = jax.random.key(1)
    w = {"a": jax.random.normal(key, (5, 8)), "b": jax.random.normal(key, (8, 2))}
    x, y = jax.random.normal(key, (16, 5)), jax.random.normal(key, (16, 2))
    step = jax.jit(lambda w: jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w, x, y)))
    for _ in range(20):
        w = step(w)
    show("loss", loss(w, x, y))
    show("weights", w)


def scan():
    show("scan", jax.jit(lambda x: jax.lax.scan(lambda c, v: (c * 0.5 + v, c), 0.0, x))(jnp.arange(10.0)))
    show("while", jax.jit(lambda n: jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.5), (0, 1.0)))(7))
    show("branch", jax.jit(lambda n: jax.lax.switch(n, [lambda: 1.0, lambda: 2.0, lambda: 3.0]))(2))


def vmap():
    show("vmap", jax.jit(jax.vmap(lambda a, b: jnp.dot(a, b)))(jnp.ones((4, 3)), jnp.arange(12.0).reshape(4, 3)))
    show("sort", jax.jit(lambda x: (jnp.sort(x), jnp.argsort(x), jnp.cumsum(x)))(jnp.array([3.0, 1.0, 2.0, -5.0])))


def random():
    key = jax.random.key(7)
    show("normal", jax.random.normal(key, (6,)))
    show("integers", jax.random.randint(key, (6,), 0, 1000))
    show("permutation", jax.random.permutation(key, 10))


def pmap():
    print(jax.device_count(), [str(device) for device in jax.devices()])
    count = jax.local_device_count()
    show("pmap", jax.pmap(lambda x: x * x, axis_name="i")(jnp.arange(float(count))))
    show("psum", jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.arange(float(count))))
    moved = [jax.device_put(jnp.arange(5.0), device) for device in jax.devices()]
    show("moved", [jax.jit(lambda x: x + 1)(part) for part in moved])


def large():
    a = jax.device_put(np.arange(1 << 20, dtype=np.float32))
    b = jax.jit(lambda x: x[::-1] * 2)(a)
    show("large", [jnp.sum(b), b[:3], b[-3:]])
    print(np.asarray(b).tobytes()[:16].hex(), np.asarray(b).sum())


def errors():
    try:
        jax.jit(lambda x: x)(jnp.ones(3)).devices()
        jax.block_until_ready(jax.jit(lambda a, b: a + b)(jnp.ones(3), jnp.ones(4)))
    except (TypeError, ValueError) as error:
        print(type(error).__name__)
    x = jnp.arange(4.0)
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    show("donated", y)
    print(x.is_deleted())


PROGRAMS = {p.__name__: p for p in (jit, grad, scan, vmap, random, pmap, large, errors)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        print("---", name, jax.default_backend())
        PROGRAMS[name]()
