"""Loaders with pinned memory in worker processes, copies of all kinds, several threads, several processes."""
import multiprocessing
import threading

import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((1000,), float(i)), i


def child(queue):
    queue.put((torch.arange(1000, device="cuda") ** 2).sum().item())


def main():
    total = 0.0
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    for data, labels in loader:
        total += (data.cuda(non_blocking=True).sum() + labels.cuda(non_blocking=True).sum()).item()
    print("loader", total)
    pinned = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty_like(pinned, pin_memory=True)
    back.copy_(there * 3, non_blocking=True)
    torch.cuda.synchronize()
    print("pinned", pinned.is_pinned(), bool((back == pinned * 3).all()))
    parts = [torch.arange(n).cuda().cpu().sum().item() for n in (1, 7, 1000, 123457, 5000000)]
    print("pageable", parts)
    results = [0.0] * 4

    def work(i):
        x = torch.full((512, 512), i + 1.0, device="cuda", requires_grad=True)
        (x @ x).sum().backward()
        results[i] = x.grad.sum().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print("threads", results)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=child, args=(queue,)) for _ in range(3)]
    [c.start() for c in children]
    print("processes", [queue.get(timeout=60) for _ in children])
    [c.join() for c in children]


if __name__ == "__main__":
    main()
