"""Memory that is allocated in the order of a stream (cudaMallocAsync)."""
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
import torch  # noqa: E402
from _loop import run  # noqa: E402

torch.manual_seed(0)
data = torch.randn(512, 512, device="cuda")


def work():
    return float((data @ data).double().sum())


run(work)
