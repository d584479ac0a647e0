"""torch.compile (Inductor, Triton kernels) with and without CUDA graphs."""
import torch

torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 64)).cuda()
x = torch.randn(32, 128, device="cuda")
for mode in ("default", "reduce-overhead"):
    compiled = torch.compile(model, mode=mode)
    for _ in range(3):
        y = compiled(x)
    print(mode, round(y.double().sum().item(), 3), torch.allclose(y, model(x), atol=1e-2))
