"""Steps of training with AdamW; the loss is the result."""
import torch
from _loop import run

torch.manual_seed(0)
net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(net.parameters())
data = torch.randn(64, 512, device="cuda")


def work():
    for _ in range(10):
        loss = net(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


run(work)
