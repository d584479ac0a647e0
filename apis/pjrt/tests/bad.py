"""Hands a plug-in arguments that no program should: each is an error, and the next call works. FILE: the guest library."""
import array
import ctypes
import sys

from pypjrt import errors
from pypjrt._loader import Plugin
from pypjrt.client import Client, Device

F32 = 11
plugin = Plugin(sys.argv[1])
plugin.initialize()
client = Client(plugin)
device = Device(plugin, client._addressable()[0])
NUMBERS = array.array("f", [1.0, 2.0, 3.0, 4.0])


def alive():
    buffer = client.buffer_from_host(NUMBERS, F32, [4], device)
    got = array.array("f")
    got.frombytes(buffer.to_host())
    assert got == NUMBERS, got
    buffer.close()


def refused(name, act):
    try:
        act()
    except errors.PjrtError as error:
        print(f"bad: {name}: {type(error).__name__}")
    else:
        print(f"{name} was accepted")
        sys.exit(1)
    alive()


def call(function, struct, **members):
    args = plugin.args(struct, **members)
    plugin.call(function, args)
    return args


def sized(size):
    args = plugin.args("PJRT_Client_PlatformName_Args", client=client.address)
    args.struct_size = size
    plugin.call("PJRT_Client_PlatformName", args)


alive()
refused("no object", lambda: call("PJRT_Buffer_ElementType", "PJRT_Buffer_ElementType_Args", buffer=0x1234))
refused("an object of another type", lambda: call("PJRT_Buffer_ElementType", "PJRT_Buffer_ElementType_Args", buffer=client.address))
gone = client.buffer_from_host(NUMBERS, F32, [4], device)
address = gone.address
gone.close()
refused("a destroyed buffer", lambda: call("PJRT_Buffer_ElementType", "PJRT_Buffer_ElementType_Args", buffer=address))
refused("struct_size 0", lambda: sized(0))
refused("struct_size 7", lambda: sized(7))
refused("struct_size 2^40", lambda: sized(1 << 40))
refused("a negative dimension", lambda: client.buffer_from_host(NUMBERS, F32, [-4], device))
refused("dimensions that overflow", lambda: client.buffer_from_host(NUMBERS, F32, [1 << 40, 1 << 40], device))
refused("no program", lambda: client.compile("this is not valid MLIR at all"))
refused("a program of zeros", lambda: client.compile(b"\0" * 1000))
refused("a damaged executable", lambda: client.deserialize_executable(b"\x7f" * 1000))


def tiled(sizes, tiles=(8, 128)):
    """A buffer in tiles of so many dimensions."""
    order, sizes, dims = (ctypes.c_int64 * 1)(0), (ctypes.c_size_t * len(sizes))(*sizes), (ctypes.c_int64 * 1)(4)
    tiles, asked = (ctypes.c_int64 * len(tiles))(*tiles), plugin.abi.PJRT_Buffer_MemoryLayout()
    asked.struct_size, asked.type = ctypes.sizeof(asked), 0
    told = asked._anon2.tiled
    told.struct_size, told.minor_to_major, told.minor_to_major_size = 56, ctypes.cast(order, ctypes.c_void_p), 1
    told.tile_dims, told.tile_dim_sizes, told.num_tiles = ctypes.cast(tiles, ctypes.c_void_p), ctypes.cast(sizes, ctypes.c_void_p), len(sizes)
    call("PJRT_Client_BufferFromHostBuffer", "PJRT_Client_BufferFromHostBuffer_Args", client=client.address, data=NUMBERS.buffer_info()[0],
         type=F32, num_dims=1, dims=ctypes.cast(dims, ctypes.c_void_p), device=device.address, host_buffer_semantics=0,
         device_layout=ctypes.addressof(asked))


def tiled_parts():
    asked, asked_list = plugin.abi.PJRT_Buffer_MemoryLayout(), (ctypes.c_void_p * 1)()
    asked.struct_size, asked.type, asked._anon2.tiled.num_tiles = ctypes.sizeof(asked), 0, 1
    asked_list[0] = ctypes.addressof(asked)
    call("PJRT_Client_CreateBuffersForAsyncHostToDevice", "PJRT_Client_CreateBuffersForAsyncHostToDevice_Args", client=client.address,
         num_device_layouts=1, device_layouts=ctypes.cast(asked_list, ctypes.c_void_p))


refused("tiles of more dimensions than there are", lambda: tiled([1 << 62, 1 << 62, 1 << 62, 1 << 62]))
refused("tiles of 2^63 dimensions", lambda: tiled([1 << 63]))
refused("tiles", lambda: tiled([1]))
refused("no memory to map", lambda: call("PJRT_Client_DmaMap", "PJRT_Client_DmaMap_Args", client=client.address, data=0, size=1 << 40))
refused("memory of no client", lambda: call("PJRT_Client_DmaMap", "PJRT_Client_DmaMap_Args", client=0, data=4096, size=4096))
refused("memory of a buffer", lambda: call("PJRT_Client_DmaUnmap", "PJRT_Client_DmaUnmap_Args", client=device.address, data=4096))
refused("tiles of buffers that are filled in parts", tiled_parts)
refused("a shape of no topology", lambda: call("PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace",
        "PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args", topology=client.address, element_type=F32))


def unforwarded(function, args_struct=None, **members):
    """A function, or what it is given, that Aviary does not forward: the error names it."""
    try:
        call(function, args_struct or function + "_Args", **members)
        sys.exit(f"{function} was accepted")
    except errors.PjrtError as error:
        assert type(error).__name__ == "Unimplemented" and function.split("Stream_")[0] in str(error), error
        print(f"bad: {function}: not forwarded")
    alive()


def execute(**members):
    options = plugin.args("PJRT_ExecuteOptions", **members)
    unforwarded("PJRT_LoadedExecutable_Execute", executable=program.address, num_devices=1, options=ctypes.addressof(options))


program = client.compile(b"module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> } }")
for options in {"num_send_ops": 1}, {"num_recv_ops": 1}, {"num_hlo_output_callbacks": 1}, {"multi_slice_config": 1}:
    execute(**options)
load_options = plugin.args("PJRT_LoadOptions", multi_slice_config=1)
unforwarded("PJRT_Executable_DeserializeAndLoad", client=client.address, load_options=ctypes.addressof(load_options))
unforwarded("PJRT_Client_CreateErrorBuffer", client=client.address, num_payload=1)
unforwarded("PJRT_Device_PoisonExecution", device=device.address, num_payload=1)
unforwarded("PJRT_Buffer_UnsafePointer")
unforwarded("PJRT_Client_CreateViewOfDeviceBuffer", client=client.address)
for function in "Destroy", "AddChunk", "TotalBytes", "GranuleSize", "CurrentBytes":
    unforwarded("PJRT_CopyToDeviceStream_" + function)
# The plug-in aborts its process: this session ends, this program does not.
try:
    client.buffer_from_host(NUMBERS, 9999, [4], device)
    sys.exit("a type of elements that nobody knows was accepted")
except errors.PjrtError as error:
    assert "API server is gone" in str(error), error
    print("bad: an unknown type of elements:", type(error).__name__)
