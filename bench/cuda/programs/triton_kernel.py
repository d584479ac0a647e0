"""A kernel of Triton's own."""
import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + at, values / tl.sum(values, axis=0), mask=at < columns)


torch.manual_seed(4)
x = torch.randn(64, 781, device="cuda")
y = torch.empty_like(x)
softmax[(64,)](x, y, 781, BLOCK=1024)
print("softmax", torch.allclose(y, x.softmax(1)), round(y.double().square().sum().item(), 6))
