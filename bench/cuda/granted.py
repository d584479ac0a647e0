"""PyTorch that takes all the device memory it gets and works without a pause. granted.py SECONDS BEGIN_FILE

Writes a line of JSON when it has its memory: `free` and `total` as PyTorch tells them before, `taken` bytes. Works when BEGIN_FILE is
there, for so many seconds, and writes `steps`.
"""

import json
import sys
import time
from pathlib import Path

import torch

BLOCK, SIDE, KERNELS = 64 << 20, 4096, 8


def main():
    seconds, begin = float(sys.argv[1]), Path(sys.argv[2])
    a = torch.ones(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    b = a @ a
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    blocks = []
    try:
        while True:
            blocks.append(torch.full((BLOCK,), 7, device="cuda", dtype=torch.uint8))
    except torch.OutOfMemoryError:
        pass
    torch.cuda.synchronize()
    print(json.dumps({"free": free, "total": total, "taken": torch.cuda.memory_reserved()}), flush=True)
    while not begin.exists():
        time.sleep(0.01)
    ends, steps = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        for _ in range(KERNELS):
            torch.matmul(a, a, out=b)
        torch.cuda.synchronize()
        steps += KERNELS
    # Room for the comparisons.
    del blocks[-4:]
    torch.cuda.empty_cache()
    right = bool((b == SIDE).all()) and all(bool((block == 7).all()) for block in blocks)
    print(json.dumps({"steps": steps, "right": right}), flush=True)


if __name__ == "__main__":
    main()
