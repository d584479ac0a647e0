"""A convolution (cuDNN)."""
import torch
from _loop import run

torch.manual_seed(0)
net = torch.nn.Conv2d(16, 32, 3).cuda().half()
data = torch.randn(8, 16, 64, 64, device="cuda").half()


def work():
    with torch.no_grad():
        return float(net(data).double().sum())


run(work)
