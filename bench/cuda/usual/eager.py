"""Inference of a dense network, half precision."""
import torch
from _loop import run

torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda().half().eval()
data = torch.randn(64, 1024, device="cuda").half()


def work():
    with torch.no_grad():
        return float(net(data).double().sum())


run(work)
