"""torch.compile, which makes Triton's kernels."""
import torch
from _loop import run

torch.manual_seed(0)
net = torch.compile(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024)).cuda().eval())
data = torch.randn(64, 1024, device="cuda")


def work():
    with torch.no_grad():
        return float(net(data).double().sum())


run(work)
