"""A tensor of one process in another: torch.multiprocessing passes the name of its memory, and an event behind what was written.

The reference driver skips PyTorch's kernels, so what is looked at is written and read by copies and fills.
"""

import torch
import torch.multiprocessing as processes


def receive(there, back):
    tensor = there.get()
    print("received", tuple(tensor.shape), tensor.dtype, tensor.device, flush=True)
    print("it holds what was written before it was passed:", bool((tensor.cpu() == torch.arange(1000.0)).all()), flush=True)
    tensor.copy_(torch.full((1000,), 7.0))
    torch.cuda.synchronize()
    del tensor
    back.put("written")
    event = there.get()
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), event)
    event.synchronize()
    print("the event of the other process is reached:", event.query(), flush=True)
    back.put("done")


def main():
    processes.set_start_method("spawn")
    there, back = processes.Queue(), processes.Queue()
    other = processes.Process(target=receive, args=(there, back))
    other.start()
    tensor = torch.empty(1000, device="cuda")
    tensor.copy_(torch.arange(1000.0), non_blocking=True)
    there.put(tensor)
    assert back.get(timeout=600) == "written"
    print("the first process has what the other wrote:", bool((tensor.cpu() == 7).all()), flush=True)
    event = torch.cuda.Event(interprocess=True)
    event.record()
    there.put(event.ipc_handle())
    assert back.get(timeout=600) == "done"
    other.join(60)
    assert other.exitcode == 0
    print("ok processes")


if __name__ == "__main__":
    main()
