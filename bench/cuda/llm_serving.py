"""What the language-model servers of `cuda_llm.py` have in common: a line of JSON for each line of JSON.

A request has `seed`; its answer the seconds to its first token (`first_s`), those of a batch (`batch_s`) and a digest of all tokens.
The first line of output is `{"ready": SECONDS}`.
"""

import hashlib
import json
import random
import sys
import time

PROMPT, BATCH, TOKENS = 512, 16, 64
# The shape of Llama 3 8B, with a smaller vocabulary.
SHAPE = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=32000)


def prompt(random_numbers, length):
    return [random_numbers.randrange(5, 31000) for _ in range(length)]


def answer(tokens, seed, batch):
    """`tokens(prompts, count)`: that many tokens for each prompt, a list of tokens itself; always the same ones."""
    numbers = random.Random(seed)
    begun = time.monotonic()
    first = tokens([prompt(numbers, PROMPT)], 1)
    at_first = time.monotonic()
    rest = tokens([prompt(numbers, numbers.randrange(32, PROMPT)) for _ in range(batch)], TOKENS)
    ended = time.monotonic()
    digest = hashlib.sha256(json.dumps([first, rest]).encode()).hexdigest()[:16]
    return {"first_s": at_first - begun, "batch_s": ended - at_first, "digest": digest}


def serve(load, batch=BATCH):
    """Serves what `load` returns, a function as `answer` has it; `batch` is the number of prompts in a batch."""
    begun = time.monotonic()
    tokens = load()
    answer(tokens, 0, batch)
    print(json.dumps({"ready": time.monotonic() - begun}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(tokens, json.loads(line)["seed"], batch)), flush=True)
