"""An unmodified vLLM engine that says how fast it is. llm_speed.py MODEL_FOLDER UTILIZATION [SECONDS BEGIN_FILE]

Writes lines of JSON. `ready`: seconds until it has answered once. Then, without SECONDS: `first_s`, to the first token of a prompt of
1,024, and tokens a second of one sequence (`one`) and of 64 (`many`), each a list of one number a repetition, and a `digest` of all tokens.
With them: works without a pause from when BEGIN_FILE is there, for so many seconds; then `tokens`, and seconds a token of each batch
(`token_s`).
"""

import hashlib
import json
import random
import sys
import time
from pathlib import Path

import llm_server
from llm_serving import prompt

REPEATS, LONG, TOKENS, MANY = 5, 1024, 128, 64
# Of one that works without a pause: sequences in a batch, and tokens of each.
BATCH, BATCH_TOKENS = 16, 32


def measured(tokens, numbers):
    """Seconds, and the tokens, of each of three requests."""
    found = []
    for prompts, count in (
        ([prompt(numbers, LONG)], 1),
        ([prompt(numbers, 64)], TOKENS),
        ([prompt(numbers, numbers.randrange(32, 512)) for _ in range(MANY)], TOKENS),
    ):
        begun = time.monotonic()
        answer = tokens(prompts, count)
        found.append((time.monotonic() - begun, answer))
    return found


def speed(tokens):
    numbers, digest = random.Random(7), hashlib.sha256()
    rows = []
    for _ in range(REPEATS):
        found = measured(tokens, numbers)
        digest.update(json.dumps([answer for _, answer in found]).encode())
        rows.append([seconds for seconds, _ in found])
    return {"first_s": [row[0] for row in rows], "one": [TOKENS / row[1] for row in rows], "many": [MANY * TOKENS / row[2] for row in rows],
            "digest": digest.hexdigest()[:16]}


def without_pause(tokens, seconds, begin):
    numbers, times = random.Random(8), []
    prompts = [prompt(numbers, 64) for _ in range(BATCH)]
    tokens(prompts, BATCH_TOKENS)
    while not begin.exists():
        time.sleep(0.01)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        begun = time.monotonic()
        tokens(prompts, BATCH_TOKENS)
        times.append((time.monotonic() - begun) / BATCH_TOKENS)
    return {"tokens": len(times) * BATCH * BATCH_TOKENS, "token_s": times}


def main():
    begun = time.monotonic()
    tokens = llm_server.load()
    measured(tokens, random.Random(6))
    print(json.dumps({"ready": time.monotonic() - begun}), flush=True)
    done = without_pause(tokens, float(sys.argv[3]), Path(sys.argv[4])) if len(sys.argv) > 3 else speed(tokens)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
