"""CUDA graphs, streams and events of PyTorch."""
import torch

torch.manual_seed(2)
x = torch.randn(256, 256, device="cuda")
w = torch.randn(256, 256, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        y = torch.relu(x @ w)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.relu(x @ w) * 0.5
for i in range(3):
    x.copy_(torch.full_like(x, i + 1.0))
    graph.replay()
torch.cuda.synchronize()
print("graph", y.double().sum().item())
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
for _ in range(10):
    y = y @ w * 0.01
end.record()
end.synchronize()
print("events", begin.elapsed_time(end) > 0, end.query())
streams = [torch.cuda.Stream() for _ in range(8)]
parts = []
for i, stream in enumerate(streams):
    with torch.cuda.stream(stream):
        parts.append((torch.full((1000,), float(i), device="cuda") * 2).sum())
torch.cuda.synchronize()
print("streams", [p.item() for p in parts])
