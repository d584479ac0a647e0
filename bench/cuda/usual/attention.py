"""Flash attention."""
import torch
from _loop import run

torch.manual_seed(0)
data = torch.randn(2, 8, 256, 64, device="cuda").half()


def work():
    return float(torch.nn.functional.scaled_dot_product_attention(data, data, data).double().sum())


run(work)
