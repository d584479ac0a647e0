"""PyTorch's allocator on reserved addresses, which it maps and unmaps itself, and its way out of too little memory."""
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import torch

blocks = [torch.full((n << 18,), n, dtype=torch.int32, device="cuda") for n in (1, 40, 3, 200, 7)]
print("sums", [block.double().sum().item() for block in blocks])
del blocks[1::2]
torch.cuda.empty_cache()
blocks.append(torch.full((300 << 18,), 5, dtype=torch.int32, device="cuda"))
print("again", [block.double().sum().item() for block in blocks])
print("segments", {segment["is_expandable"] for segment in torch.cuda.memory_snapshot()})
free, total = torch.cuda.mem_get_info()
try:
    torch.empty(total, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("out of memory", "Tried to allocate" in str(error))
print("afterwards", torch.ones(1000, device="cuda").sum().item())
