"""Eager training, autocast, convolution, attention, reductions, FFT, linear algebra, sorting, random numbers."""
import torch
import torch.nn.functional as F

torch.manual_seed(1)
torch.backends.cudnn.deterministic = True
device = "cuda"
a, b = torch.randn(384, 512, device=device), torch.randn(512, 256, device=device)
print("matmul", (a @ b).double().sum().item())
print("bf16", (a.bfloat16() @ b.bfloat16()).double().sum().item())
print("half", (a.half() @ b.half()).double().sum().item())
x8, y8 = a.to(torch.float8_e4m3fn), b.t().contiguous().to(torch.float8_e4m3fn).t()
one = torch.ones((), device=device)
print("fp8", torch._scaled_mm(x8, y8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16).double().sum().item())
q, k, v = (torch.randn(2, 8, 256, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
print("attention", F.scaled_dot_product_attention(q, k, v, is_causal=True).double().sum().item())
image, weight = torch.randn(4, 16, 32, 32, device=device), torch.randn(32, 16, 3, 3, device=device)
print("convolution", F.conv2d(image, weight, padding=1).double().sum().item())
print("fft", torch.fft.fft2(image).abs().double().sum().item())
s = torch.randn(64, 64, device=device)
print("svd", round(torch.linalg.svdvals(s).double().sum().item(), 3))
print("solve", round(torch.linalg.solve(s + 10 * torch.eye(64, device=device), s).double().sum().item(), 3))
print("sort", torch.randperm(100003, device=device).sort().values[12345].item(), a.argmax().item(), a.topk(3).values.sum().item())
print("sparse", round(torch.sparse.mm(s.relu().to_sparse_csr(), s).double().sum().item(), 2))
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 2), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
                            torch.nn.Flatten(), torch.nn.Linear(16 * 15 * 15, 10)).to(device)
optimizer, scaler = torch.optim.AdamW(model.parameters(), 1e-3), torch.amp.GradScaler("cuda")
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(torch.randn(8, 3, 32, 32, device=device)), torch.arange(8, device=device))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("training", round(loss.item(), 4))
torch.cuda.synchronize()
print("memory", torch.cuda.memory_allocated() > 0, torch.cuda.max_memory_reserved() > 0, torch.cuda.mem_get_info()[1] > 1 << 30)
torch.cuda.empty_cache()
print("name", torch.cuda.get_device_name(), torch.cuda.get_device_capability())
try:
    torch.empty(1 << 45, dtype=torch.uint8, device=device)
except torch.OutOfMemoryError as error:
    print("out of memory", "Tried to allocate" in str(error))
