"""cuFFT, cuSOLVER, cuSPARSE and cuRAND."""
import torch
from _loop import run

torch.manual_seed(0)
signal, matrix = torch.randn(64, 4096, device="cuda"), torch.randn(256, 256, device="cuda")
sparse = torch.eye(256, device="cuda").to_sparse_csr()


def work():
    torch.cuda.manual_seed(1)
    parts = torch.fft.rfft(signal).abs(), torch.linalg.svdvals(matrix), sparse @ matrix, torch.randn(1000, device="cuda")
    return [float(part.double().sum()) for part in parts]


run(work)
