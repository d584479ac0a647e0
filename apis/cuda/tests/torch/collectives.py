"""NCCL's calls on devices whose kernels do not run: two processes find each other, share memory and launch. No results."""
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def process(rank, ranks, port):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    value = torch.empty(1 << 20, device="cuda")
    dist.all_reduce(value)
    dist.broadcast(value, 0)
    other = torch.empty_like(value)
    peer = 1 - rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, value, peer), dist.P2POp(dist.irecv, other, peer)]):
        work.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(process, args=(2, port), nprocs=2)
    print("ok collectives")
