"""A language model in plain JAX that answers requests as `llm_serving.py` says.

  jax_server.py MODEL_FOLDER UTILIZATION GIB

JAX takes UTILIZATION of the device's memory at its start, as it does by default (0.75). `config.json` of the folder has
`num_hidden_layers`; GIB is not read. Weights are random, from one key.
"""

import functools
import json
import os
import sys
from pathlib import Path

import llm_serving
from llm_serving import PROMPT, SHAPE, TOKENS

HEADS, FEW, WIDTH = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], SHAPE["head_dim"]
LENGTH = PROMPT + TOKENS


def weights(jax, layers):
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    shapes = dict(q=(hidden, HEADS * WIDTH), k=(hidden, FEW * WIDTH), v=(hidden, FEW * WIDTH), o=(HEADS * WIDTH, hidden),
                  gate=(hidden, inner), up=(hidden, inner), down=(inner, hidden))

    @functools.partial(jax.jit, static_argnums=1)
    def normal(key, shape):
        # Layer by layer: the random bits of all would take as much again, and more.
        return jax.lax.map(lambda key: jax.random.normal(key, shape, jax.numpy.bfloat16) * 0.02, key)

    keys = jax.random.split(jax.random.key(0), (len(shapes) + 1, layers))
    blocks = {name: normal(keys[at], shape) for at, (name, shape) in enumerate(shapes.items())}
    return {"embedding": normal(keys[-1][:1], (SHAPE["vocab_size"], hidden))[0], "blocks": blocks}


def turned(jnp, x, positions):
    """Rotary embedding of [batch, time, heads, width] at [batch, time]."""
    half = WIDTH // 2
    angles = positions[..., None, None] * (500000.0 ** (-jnp.arange(half) / half))
    low, high = x[..., :half], x[..., half:]
    return jnp.concatenate([low * jnp.cos(angles) - high * jnp.sin(angles), high * jnp.cos(angles) + low * jnp.sin(angles)], -1).astype(x.dtype)


def step(jax, model, cache, tokens, positions):
    """The next token for each of [batch, time] tokens at positions, and the cache with them; padding is behind a row's tokens."""
    jnp = jax.numpy

    def norm(x):
        return (x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True) + 1e-5)).astype(x.dtype)

    x = model["embedding"][tokens]
    batch, time = tokens.shape
    row = jnp.arange(batch)[:, None]
    seen = jnp.arange(LENGTH)[None, None, :] <= positions[:, :, None]

    def layer(x, of_layer):
        block, keys, values = of_layer
        h = norm(x)
        q = turned(jnp, (h @ block["q"]).reshape(batch, time, HEADS, WIDTH), positions)
        keys = keys.at[row, positions].set(turned(jnp, (h @ block["k"]).reshape(batch, time, FEW, WIDTH), positions))
        values = values.at[row, positions].set((h @ block["v"]).reshape(batch, time, FEW, WIDTH))
        q = q.reshape(batch, time, FEW, HEADS // FEW, WIDTH)
        scores = jnp.einsum("btgrd,bsgd->bgrts", q, keys, preferred_element_type=jnp.float32) / WIDTH**0.5
        scores = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e30), -1).astype(x.dtype)
        x = x + jnp.einsum("bgrts,bsgd->btgrd", scores, values).reshape(batch, time, HEADS * WIDTH) @ block["o"]
        h = norm(x)
        return x + (jax.nn.silu(h @ block["gate"]) * (h @ block["up"])) @ block["down"], (keys, values)

    x, kept = jax.lax.scan(layer, x, (model["blocks"], *cache))
    logits = jnp.einsum("bth,vh->btv", norm(x), model["embedding"], preferred_element_type=jnp.float32)
    return jnp.argmax(logits, -1), kept


def load():
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = sys.argv[2]
    # Timed choices of algorithms would differ between two processes, and with them the last bits.
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
    import jax

    layers = json.loads((Path(sys.argv[1]) / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    model = weights(jax, layers)
    jitted = jax.jit(functools.partial(step, jax), donate_argnums=1)

    def tokens(prompts, count):
        lengths = [len(prompt) for prompt in prompts]
        padded = jax.numpy.array([prompt + [0] * (PROMPT - len(prompt)) for prompt in prompts])
        kind = (layers, len(prompts), LENGTH, FEW, WIDTH)
        cache = tuple(jax.numpy.zeros(kind, jax.numpy.bfloat16) for _ in range(2))
        positions = jax.numpy.broadcast_to(jax.numpy.arange(PROMPT), padded.shape)
        # What padding leaves in the cache is overwritten before it is seen.
        found, cache = jitted(model, cache, padded, positions)
        at = jax.numpy.array(lengths)[:, None]
        found = jax.numpy.take_along_axis(found, at - 1, 1)
        rows = [found]
        for _ in range(count - 1):
            found, cache = jitted(model, cache, found, at)
            at = at + 1
            rows.append(found)
        return jax.numpy.concatenate(rows, 1).tolist()

    return tokens


if __name__ == "__main__":
    llm_serving.serve(load)
