"""Trains a small network with optax, its parameters and state donated, and prints losses and parameters with all their digits."""
import jax
import jax.numpy as jnp
import numpy as np
import optax

np.set_printoptions(floatmode="unique")
keys = jax.random.split(jax.random.key(3), 4)
inputs = jax.random.normal(keys[0], (64, 16))
wanted = jnp.sin(inputs @ jax.random.normal(keys[1], (16, 4)))
parameters = {"in": jax.random.normal(keys[2], (16, 32)) * 0.3, "out": jax.random.normal(keys[3], (32, 4)) * 0.3}
schedule = optax.warmup_cosine_decay_schedule(0.0, 0.01, 20, 100)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


def loss(parameters):
    return jnp.mean((jnp.tanh(inputs @ parameters["in"]) @ parameters["out"] - wanted) ** 2)


@jax.jit(donate_argnums=(0, 1))
def step(parameters, state):
    value, gradients = jax.value_and_grad(loss)(parameters)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, value


state = optimizer.init(parameters)
for number in range(100):
    before = parameters["in"]
    parameters, state, value = step(parameters, state)
    if number % 20 == 19:
        print(number, float(value), before.is_deleted(), flush=True)
print(*(np.asarray(leaf).tolist() for leaf in jax.tree.leaves((parameters, state))))
