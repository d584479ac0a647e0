"""A program whose key-value store the plug-in (plugin.c) asks when it makes and ends a client. FILE: the plug-in."""
import ctypes
import sys
import threading

from pypjrt import errors
from pypjrt._loader import Plugin

P = ctypes.c_void_p
plugin = Plugin(sys.argv[1])
plugin.initialize()
abi = plugin.abi
values, alive, lock = {}, {}, threading.Lock()
CALLBACK, END = ctypes.CFUNCTYPE(P, P), ctypes.CFUNCTYPE(None, P)
FAIL = ctypes.CFUNCTYPE(P, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)


@END
def end(address):
    with lock:
        del alive[address]


def fail(args, code, text):
    return FAIL(P.from_address(args.callback_error).value)(code, text, len(text))


def answer(args, key, wanted):
    with lock:
        if key not in values:
            return fail(args, 5, wanted + b" " + key)
        copy = ctypes.create_string_buffer(values[key], len(values[key]) + 1)
        alive[ctypes.addressof(copy)] = copy
    args.value, args.value_size, args.value_deleter_callback = ctypes.addressof(copy), len(copy) - 1, ctypes.cast(end, P)
    return None


@CALLBACK
def get(at):
    args = abi.PJRT_KeyValueGetCallback_Args.from_address(at)
    assert args.user_arg == 11 and args.timeout_in_ms in (10, 1000)
    return answer(args, ctypes.string_at(args.key, args.key_size), b"waited for")


@CALLBACK
def try_get(at):
    args = abi.PJRT_KeyValueTryGetCallback_Args.from_address(at)
    assert args.user_arg == 33
    return answer(args, ctypes.string_at(args.key, args.key_size), b"there is no")


@CALLBACK
def put(at):
    args = abi.PJRT_KeyValuePutCallback_Args.from_address(at)
    assert args.user_arg == 22
    key = ctypes.string_at(args.key, args.key_size)
    if key == b"refused":
        return fail(args, 7, b"this is not to be put")
    with lock:
        values[key] = ctypes.string_at(args.value, args.value_size)
    return None


def create(*callbacks):
    args = plugin.args("PJRT_Client_Create_Args")
    for name, function, user in callbacks:
        setattr(args, f"kv_{name}_callback", ctypes.cast(function, P))
        setattr(args, f"kv_{name}_user_arg", user)
    plugin.call("PJRT_Client_Create", args)
    named = plugin.args("PJRT_Client_PlatformName_Args", client=args.client)
    plugin.call("PJRT_Client_PlatformName", named)
    print(ctypes.string_at(named.platform_name, named.platform_name_size).decode())
    plugin.call("PJRT_Client_Destroy", plugin.args("PJRT_Client_Destroy_Args", client=args.client))


everything = ("get", get, 11), ("put", put, 22), ("try_get", try_get, 33)
for asked in (), everything[:1], everything[:2], everything:
    try:
        create(*asked)
    except errors.PjrtError as error:
        print(type(error).__name__, error)
    print({key.decode(): len(value) for key, value in values.items()}, alive)
    values.clear()
