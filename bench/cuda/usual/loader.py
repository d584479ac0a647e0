"""A data loader with page-locked memory."""
import torch
from _loop import run

torch.manual_seed(0)
net = torch.nn.Linear(1024, 1024).cuda().half().eval()
loader = torch.utils.data.DataLoader(torch.randn(64, 1024).half(), batch_size=64, pin_memory=True)


def work():
    with torch.no_grad():
        return float(net(next(iter(loader)).cuda(non_blocking=True)).double().sum())


run(work)
