"""A CUDA graph that is replayed."""
import torch
from _loop import run

torch.manual_seed(0)
net = torch.nn.Linear(1024, 1024).cuda().half().eval()
data = torch.randn(64, 1024, device="cuda").half()
with torch.no_grad():
    net(data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = net(data)


def work():
    graph.replay()
    return float(result.double().sum())


run(work)
