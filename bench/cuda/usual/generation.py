"""Tokens of a small GPT-2 (transformers)."""
import torch
from _loop import run
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=4)).cuda().half().eval()
prompt = torch.arange(32, device="cuda")[None]


def work():
    with torch.no_grad():
        return int(model.generate(prompt, max_new_tokens=16, do_sample=False, pad_token_id=0).sum())


run(work)
