"""Executions that a limit refuses after they were sent. What waits for their outputs, or for what is computed from them, has the error."""
import jax
import jax.numpy as jnp
import numpy as np

double = jax.jit(lambda x: (x * 2, x.sum()))
large = jax.jit(lambda n: jnp.zeros(1 << 20) + n)
small = jnp.ones(8)
print(np.asarray(double(small)[0]))
refused = large(1.0)
after = double(refused)
print(refused.shape, after[0].dtype, refused.is_deleted())
for name, wait in (
    ("block", lambda: after[0].block_until_ready()),
    ("numpy", lambda: np.asarray(refused)),
    ("numpy after", lambda: np.asarray(after[0])),
    ("device_get", lambda: jax.device_get(after)),
):
    try:
        wait()
        print(name, "no error")
    except jax.errors.JaxRuntimeError as error:
        print(name, str(error).split(":")[0])
print(np.asarray(double(small)[0]))
