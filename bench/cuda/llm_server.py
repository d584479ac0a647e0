"""An unmodified vLLM engine that answers requests of its input, a line of JSON each, by a line of JSON each.

  llm_server.py MODEL_FOLDER UTILIZATION

A request has `seed`; its answer the seconds to its first token (`first_s`), those of a batch (`batch_s`) and a digest of all tokens.
The first line of output is `{"ready": SECONDS}`. Weights are vLLM's dummy ones, which are the same in each process.
"""

import hashlib
import json
import os
import random
import sys
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")

PROMPT, BATCH, TOKENS = 512, 16, 64


def prompt(random_numbers, length):
    return {"prompt_token_ids": [random_numbers.randrange(5, 31000) for _ in range(length)]}


def answer(llm, seed):
    from vllm import SamplingParams

    def tokens(prompts, count):
        greedy = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        return [list(found.outputs[0].token_ids) for found in llm.generate(prompts, greedy, use_tqdm=False)]

    numbers = random.Random(seed)
    begun = time.monotonic()
    first = tokens([prompt(numbers, PROMPT)], 1)
    at_first = time.monotonic()
    rest = tokens([prompt(numbers, numbers.randrange(32, PROMPT)) for _ in range(BATCH)], TOKENS)
    ended = time.monotonic()
    digest = hashlib.sha256(json.dumps([first, rest]).encode()).hexdigest()[:16]
    return {"first_s": at_first - begun, "batch_s": ended - at_first, "digest": digest}


def main():
    from vllm import LLM

    model, utilization = sys.argv[1], float(sys.argv[2])
    begun = time.monotonic()
    # Prefix caching would make a second request of one seed another measurement.
    llm = LLM(model=model, load_format="dummy", skip_tokenizer_init=True, max_model_len=2048, seed=0, disable_log_stats=True,
              gpu_memory_utilization=utilization, enable_prefix_caching=False)
    answer(llm, 0)
    print(json.dumps({"ready": time.monotonic() - begun}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llm, json.loads(line)["seed"])), flush=True)


if __name__ == "__main__":
    main()
