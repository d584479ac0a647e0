"""Payloads of errors and mapped memory, with a plug-in that has both (plugin.c). FILE: the plug-in."""
import ctypes
import sys

from pypjrt import errors
from pypjrt._loader import Plugin

P, S = ctypes.c_void_p, ctypes.c_size_t
VISIT = ctypes.CFUNCTYPE(None, P, S, P, S, P)
CALLBACK, FAIL = ctypes.CFUNCTYPE(P, P), ctypes.CFUNCTYPE(P, ctypes.c_int, ctypes.c_char_p, S)
plugin = Plugin(sys.argv[1])
plugin.initialize()


def visit(error, **members):
    """What the payloads of an error are."""
    seen = []
    visitor = VISIT(lambda name, name_size, value, value_size, user: seen.append(
        (ctypes.string_at(name, name_size), ctypes.string_at(value, value_size) if value_size else b"", user)))
    args = plugin.args("PJRT_Error_ForEachPayload_Args", **{"error": error, "visitor": ctypes.cast(visitor, P), "user_arg": 99, **members})
    return plugin.fn("PJRT_Error_ForEachPayload")(ctypes.byref(args)), [(n, len(v), v.split(b"\0")[0], user) for n, v, user in seen]


def destroy(error):
    plugin.fn("PJRT_Error_Destroy")(ctypes.byref(plugin.args("PJRT_Error_Destroy_Args", error=error)))


def told(name, act):
    try:
        act()
        print(name, "well")
    except errors.PjrtError as error:
        print(name, type(error).__name__)


# Without a key-value store there is no client.
error = plugin.fn("PJRT_Client_Create")(ctypes.byref(plugin.args("PJRT_Client_Create_Args")))
print(visit(error))
print(visit(error))
destroy(error)


@CALLBACK
def get(at):
    args = plugin.abi.PJRT_KeyValueGetCallback_Args.from_address(at)
    return FAIL(P.from_address(args.callback_error).value)(5, b"nothing", 7)


@CALLBACK
def put(at):
    return None


made = plugin.args("PJRT_Client_Create_Args", kv_get_callback=ctypes.cast(get, P), kv_put_callback=ctypes.cast(put, P))
plugin.call("PJRT_Client_Create", made)


def mapping(function, at, size=None):
    args = plugin.args(f"PJRT_Client_{function}_Args", client=made.client, data=at)
    if size is not None:
        args.size = size
    plugin.call(f"PJRT_Client_{function}", args)


memory = ctypes.create_string_buffer(1 << 16)
start = ctypes.addressof(memory)
told("unmap what is not mapped", lambda: mapping("DmaUnmap", start))
told("map", lambda: mapping("DmaMap", start, 1 << 15))
told("map again", lambda: mapping("DmaMap", start, 1 << 15))
told("map a part", lambda: mapping("DmaMap", start + 100, 10))
told("map across the end", lambda: mapping("DmaMap", start + (1 << 15) - 1, 2))
told("unmap a part", lambda: mapping("DmaUnmap", start + 100))
told("unmap", lambda: mapping("DmaUnmap", start))
told("unmap again", lambda: mapping("DmaUnmap", start))
told("map nothing", lambda: mapping("DmaMap", start, 0))
told("map NULL", lambda: mapping("DmaMap", 0, 4096))
told("map once more", lambda: mapping("DmaMap", start, 1))
plugin.call("PJRT_Client_Destroy", plugin.args("PJRT_Client_Destroy_Args", client=made.client))
if len(sys.argv) > 2:
    # The guest's own errors, errors that have ended, and nobody who looks.
    error = plugin.fn("PJRT_Client_Create")(ctypes.byref(plugin.args("PJRT_Client_Create_Args")))
    assert visit(error, visitor=None) == (None, []) and visit(error, struct_size=1 << 40)[1] == []
    destroy(error)
    assert visit(error) == (None, []) and visit(0) == (None, [])
    refused = plugin.fn("PJRT_Client_DmaMap")(ctypes.byref(plugin.args("PJRT_Client_DmaMap_Args", struct_size=0)))
    assert visit(refused) == (None, [])
