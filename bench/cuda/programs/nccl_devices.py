"""NCCL with all devices in one process, by its own interface."""
import ctypes
from pathlib import Path

import nvidia.nccl
import torch

FLOAT, SUM = 7, 0
nccl = ctypes.CDLL(str(next(Path(folder) / "lib/libnccl.so.2" for folder in nvidia.nccl.__path__)))


def must(status):
    assert status == 0, f"NCCL answers {status}"


count = torch.cuda.device_count()
communicators = (ctypes.c_void_p * count)()
must(nccl.ncclCommInitAll(communicators, count, (ctypes.c_int * count)(*range(count))))
values = [torch.full((1 << 20,), float(device + 1), device=f"cuda:{device}") for device in range(count)]
streams = [torch.cuda.Stream(device) for device in range(count)]
for device in range(count):
    torch.cuda.synchronize(device)
for _ in range(3):
    must(nccl.ncclGroupStart())
    for device in range(count):
        address, stream = ctypes.c_void_p(values[device].data_ptr()), ctypes.c_void_p(streams[device].cuda_stream)
        must(nccl.ncclAllReduce(address, address, ctypes.c_size_t(1 << 20), FLOAT, SUM,
                                ctypes.c_void_p(communicators[device]), stream))
    must(nccl.ncclGroupEnd())
for device in range(count):
    streams[device].synchronize()
    print(device, values[device][0].item(), values[device][-1].item(), bool((values[device] == values[device][0]).all()))
for communicator in communicators:
    must(nccl.ncclCommDestroy(ctypes.c_void_p(communicator)))
