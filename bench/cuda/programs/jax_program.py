"""JAX: compiled functions, gradients, matrix products, random numbers."""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import jax.numpy as jnp

key = jax.random.PRNGKey(0)
a = jax.random.normal(key, (256, 256))
print("device", jax.devices()[0].platform)
print("product", round(float(jnp.sum(a @ a)), 1))
print("gradient", round(float(jax.jit(jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x))))(a).sum()), 1))
print("scan", float(jax.lax.scan(lambda c, x: (c + x.sum(), c), 0.0, a)[0]) < 1e6)
print("bf16", round(float((a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16)).astype(jnp.float32).sum()), 0))
