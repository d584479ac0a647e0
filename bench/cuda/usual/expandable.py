"""PyTorch's allocator with expandable segments."""
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch  # noqa: E402
from _loop import run  # noqa: E402

torch.manual_seed(0)
data = torch.randn(512, 512, device="cuda")


def work():
    return float((data @ data).double().sum())


run(work)
