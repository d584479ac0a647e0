"""An unmodified vLLM engine that answers requests as `llm_serving.py` says.

  llm_server.py MODEL_FOLDER UTILIZATION GIB

UTILIZATION is the part of the device's memory that it takes; GIB is not read. Weights are vLLM's dummy ones, which are the same in
each process.
"""

import os
import sys

import llm_serving

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")


def load():
    from vllm import LLM, SamplingParams

    # Prefix caching would make a second request of one seed another measurement.
    llm = LLM(model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, max_model_len=2048, seed=0, disable_log_stats=True,
              gpu_memory_utilization=float(sys.argv[2]), enable_prefix_caching=False)

    def tokens(prompts, count):
        greedy = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        found = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], greedy, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]

    return tokens


if __name__ == "__main__":
    llm_serving.serve(load)
