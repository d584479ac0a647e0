"""Reads what the first word of a memory and of an error leads to, as programs of version 112 and later do. FILE: the plug-in. `guest`: it
is the guest library, which has errors of its own."""
import ctypes
import sys

from pypjrt._loader import Plugin
from pypjrt.client import Client

P, S = ctypes.c_void_p, ctypes.c_size_t
END = ctypes.CFUNCTYPE(None, P)
VISIT = ctypes.CFUNCTYPE(None, P, S, P, S, P)


class MemoryTable(ctypes.Structure):
    _fields_ = [("size", S), ("extensions", P), ("instance", S), ("get", ctypes.CFUNCTYPE(P, P, P)),
                ("set", ctypes.CFUNCTYPE(None, P, P, P, END))]


class ErrorTable(ctypes.Structure):
    _fields_ = [("size", S), ("instance", S), ("extensions", P), ("destroy", ctypes.CFUNCTYPE(None, P)),
                ("message", ctypes.CFUNCTYPE(None, P, ctypes.POINTER(P), ctypes.POINTER(S))),
                ("code", ctypes.CFUNCTYPE(ctypes.c_int, P)), ("payloads", ctypes.CFUNCTYPE(None, P, P, P))]


def table(address, kind):
    read = kind.from_address(P.from_address(address).value)
    assert read.size >= ctypes.sizeof(kind), read.size
    return read


plugin = Plugin(sys.argv[1])
plugin.initialize()
client = Client(plugin)
args = plugin.args("PJRT_Client_AddressableMemories_Args", client=client.address)
plugin.call("PJRT_Client_AddressableMemories", args)
memories = list(ctypes.cast(args.addressable_memories, ctypes.POINTER(P))[: args.num_addressable_memories])
assert memories

# What the program keeps beside a memory, by keys; what was there before ends, once.
ended = []
end = END(ended.append)
for number, memory in enumerate(memories):
    functions = table(memory, MemoryTable)
    assert functions.instance >= 8 and functions.get(memory, 1) is None
    functions.set(memory, 1, 100 + number, end)
    functions.set(memory, 2, 200 + number, END())
assert [functions.get(m, 1) for m in memories] == [100 + n for n in range(len(memories))]
functions.set(memories[0], 1, 77, end)
assert (ended, functions.get(memories[0], 1), functions.get(memories[0], 2)) == ([100], 77, 200)

# An error of the plug-in's, and one of the guest's own: a function that is not virtualized.
for name, args, code in (
    ("PJRT_Client_LookupDevice", plugin.args("PJRT_Client_LookupDevice_Args", client=client.address, id=9999), 3),
    ("PJRT_Buffer_UnsafePointer", plugin.args("PJRT_Buffer_UnsafePointer_Args"), 12),
)[: len(sys.argv) - 1]:
    error = plugin.fn(name)(ctypes.byref(args))
    functions, text, size = table(error, ErrorTable), P(), S()
    functions.message(error, ctypes.byref(text), ctypes.byref(size))
    print(name, functions.code(error), ctypes.string_at(text.value, size.value))
    assert size.value and functions.code(error) == code and functions.instance >= 8
    functions.payloads(error, ctypes.cast(VISIT(lambda *payload: print(payload)), P), None)
    functions.destroy(error)

client.close()
assert sorted(ended) == sorted([77, *(100 + n for n in range(len(memories)))]), ended
