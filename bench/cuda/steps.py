"""Steps of models, as people train and run them: `name milliseconds checksum`, medians of steps after warming up.

With COUNT_WITH (the command aviary), four more words: per step, calls that were waited for, those that were not, and bytes
of messages to and from the API server. With STEPS_BETWEEN="BEGIN END" (seconds of CLOCK_MONOTONIC) instead: `name steps
seconds` of what was done between them.
"""
import json
import os
import statistics
import subprocess
import sys
import time

import torch

torch.manual_seed(7)
torch.backends.cudnn.benchmark = False
device = "cuda"


COUNTERS = ("calls", "async_calls", "bytes_in", "bytes_out")


def counted():
    """What this process has sent so far; nothing where nobody counts."""
    if "COUNT_WITH" not in os.environ:
        return []
    listed = subprocess.run([os.environ["COUNT_WITH"], "ps", "--json"], capture_output=True, text=True, check=True).stdout
    sessions = [session["counters"] for node in json.loads(listed) for session in node["sessions"]
                if session["guest"] == os.getpid() and session["api"] == "cuda"]
    return [sum(session[name] for session in sessions) for name in COUNTERS]


def steps_between(step, begin, end):
    """From the end of a step in that time to that of the last one."""
    steps, first, last = -1, 0, 0
    while time.monotonic() < end:
        step()
        torch.cuda.synchronize()
        now = time.monotonic()
        if begin <= now < end:
            steps, first, last = steps + 1, first or now, now
    return steps, f"{last - first:.6f}"


def measure(name, step, warm, count):
    for _ in range(warm):
        result = step()
    torch.cuda.synchronize()
    if "STEPS_BETWEEN" in os.environ:
        print(name, *steps_between(step, *map(float, os.environ["STEPS_BETWEEN"].split())), flush=True)
        sys.exit()
    before = counted()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        result = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    per_step = [f"{(now - then) / count:.1f}" for now, then in zip(counted(), before)]
    print(name, f"{statistics.median(times) * 1e3:.4f} {float(result):.5g}", *per_step, flush=True)


def tiny_mlp():
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
                                torch.nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False, fused=False)
    x, y = torch.randn(32, 64, device=device), torch.randint(10, (32,), device=device)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    measure("tiny_mlp", step, 30, 200)


def resnet50():
    import torchvision

    model = torchvision.models.resnet50().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x, y = torch.randn(32, 3, 224, 224, device=device), torch.randint(1000, (32,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    measure("resnet50_train_b32", step, 8, 30)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(50257, (4, 512), device=device)

    def train():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    measure("gpt2_train_b4", train, 6, 25)
    model = model.eval().bfloat16()
    decode("gpt2_decode", model, tokens[:1, :64])


def decode(name, model, prompt):
    """One token at a time with a cache of keys and values."""
    with torch.no_grad():
        out = model(prompt, use_cache=True)
        state = {"cache": out.past_key_values, "token": out.logits[:, -1:].argmax(-1)}

        def step():
            out = model(state["token"], past_key_values=state["cache"], use_cache=True)
            state["cache"], state["token"] = out.past_key_values, out.logits[:, -1:].argmax(-1)
            return state["token"].sum()

        measure(name, step, 10, 60)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    configuration = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=32,
                                num_key_value_heads=8, vocab_size=32000)
    model = LlamaForCausalLM(configuration).to(device, torch.bfloat16).eval()
    decode("llama_decode", model, torch.randint(32000, (1, 64), device=device))


for name in sys.argv[1:] or ["tiny_mlp", "resnet50", "gpt2", "llama"]:
    {"tiny_mlp": tiny_mlp, "resnet50": resnet50, "gpt2": gpt2, "llama": llama}[name]()
