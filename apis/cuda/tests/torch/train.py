"""Trains a model for some steps: `train.py resnet50|gpt2 STEPS`.

Each step begins with a question for free memory, which nothing else here asks: with it the traces of driver and guest are
cut into steps. The images and tokens come from the host in every step, as from a loader.
"""
import sys

import torch
import torch.nn.functional as F

device = "cuda"


def resnet50():
    import torchvision

    model = torchvision.models.resnet50().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images, labels = torch.randn(32, 3, 224, 224).pin_memory(), torch.randint(1000, (32,)).pin_memory()

    def loss():
        return F.cross_entropy(model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True))

    return loss, optimizer


def gpt2():
    from gpt2 import GPT2, VOCABULARY

    model = GPT2().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(VOCABULARY, (4, 513)).pin_memory()

    def loss():
        there = tokens.to(device, non_blocking=True)
        return F.cross_entropy(model(there[:, :-1]).flatten(0, 1), there[:, 1:].flatten())

    return loss, optimizer


def main(name, steps):
    torch.manual_seed(7)
    loss_of, optimizer = {"resnet50": resnet50, "gpt2": gpt2}[name]()
    for _ in range(steps):
        torch.cuda.mem_get_info()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
    torch.cuda.mem_get_info()
    print(name, steps, "steps, loss", loss.item(), flush=True)


main(sys.argv[1], int(sys.argv[2]))
