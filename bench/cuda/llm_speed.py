"""An unmodified vLLM engine that says how fast it is. llm_speed.py MODEL_FOLDER UTILIZATION [SECONDS BEGIN_FILE PROMPT COUNT]

Writes lines of JSON. `ready`: seconds until it has answered once. Then, without SECONDS: `first_s`, to the first token of a prompt of
1,024, and tokens a second of one sequence (`one`) and of 64 (`many`), each a list of one number a repetition, and a `digest` of all tokens.
With them: works without a pause from when BEGIN_FILE is there, for so many seconds, on batches of 16 prompts of PROMPT tokens that it
answers with COUNT; then `tokens` that it has answered, and seconds a token of each batch (`token_s`).
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
# Sequences in a batch of one that works without a pause.
BATCH = 16


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


def without_pause(tokens, seconds, begin, length, count):
    numbers, times = random.Random(8), []
    prompts = [prompt(numbers, length) for _ in range(BATCH)]
    tokens(prompts, count)
    while not begin.exists():
        time.sleep(0.01)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        begun = time.monotonic()
        tokens(prompts, count)
        times.append((time.monotonic() - begun) / count)
    return {"tokens": len(times) * BATCH * count, "token_s": times}


def main():
    begun = time.monotonic()
    tokens = llm_server.load()
    measured(tokens, random.Random(6))
    print(json.dumps({"ready": time.monotonic() - begun}), flush=True)
    if len(sys.argv) > 3:
        seconds, begin, length, count = sys.argv[3:]
        done = without_pause(tokens, float(seconds), Path(begin), int(length), int(count))
    else:
        done = speed(tokens)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
