"""PyTorch on all devices, each with a process: NCCL's collectives, point to point, and training steps in parallel."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def collectives(rank, ranks):
    for count in (1, 1000, (1 << 22) + 3):
        ones = torch.full((count,), float(rank + 1), device="cuda")
        dist.all_reduce(ones)
        assert (ones == ranks * (ranks + 1) / 2).all()
        dist.broadcast(ones.fill_(rank), ranks - 1)
        assert (ones == ranks - 1).all()
        gathered = [torch.empty(count, device="cuda") for _ in range(ranks)]
        dist.all_gather(gathered, torch.full((count,), float(rank), device="cuda"))
        assert all((part == number).all() for number, part in enumerate(gathered))
        scattered = torch.empty(count, device="cuda")
        dist.reduce_scatter_tensor(scattered, torch.full((count * ranks,), 2.0, device="cuda"))
        assert (scattered == 2 * ranks).all()
        if ranks > 1:
            after, before = (rank + 1) % ranks, (rank - 1) % ranks
            arrived = torch.empty(count, device="cuda")
            mine = torch.full((count,), float(rank), device="cuda")
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, arrived, before)]):
                work.wait()
            assert (arrived == before).all()
    dist.barrier()


def graph(ranks):
    """A collective in a captured graph."""
    value = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(value)
    value.fill_(1)
    for _ in range(3):
        captured.replay()
    torch.cuda.synchronize()
    assert (value == ranks**3).all()


def training(rank):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    inputs, targets = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = sum(parameter.double().abs().sum() for parameter in model.parameters())
    return f"loss {loss.item():.4f}, weights {weights.item():.3f}"


def process(rank, ranks, port):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, device_id=device)
    collectives(rank, ranks)
    graph(ranks)
    text = training(rank)
    for turn in range(ranks):
        dist.barrier()
        if turn == rank:
            print(f"process {rank} of {ranks}: {text}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    count = torch.cuda.device_count()
    mp.spawn(process, args=(count, port), nprocs=count)
