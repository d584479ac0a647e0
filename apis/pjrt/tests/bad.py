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
# The plug-in aborts its process: this session ends, this program does not.
try:
    client.buffer_from_host(NUMBERS, 9999, [4], device)
    sys.exit("a type of elements that nobody knows was accepted")
except errors.PjrtError as error:
    assert "API server is gone" in str(error), error
    print("bad: an unknown type of elements:", type(error).__name__)
