"""JAX, without memory that it takes in advance."""
import os

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from _loop import run  # noqa: E402

data = jnp.ones((512, 512))
function = jax.jit(lambda x: jnp.tanh(x @ x).sum())
run(lambda: float(function(data)))
