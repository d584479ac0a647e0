"""Buffers and layouts of executables that have ended, before they are asked and meanwhile. FILE: the plug-in. `guest`: it is the guest
library, whose executions fail when their outputs have names."""
import array
import ctypes
import sys
import threading

from pypjrt import errors
from pypjrt._loader import Plugin
from pypjrt.client import Client, Device, Event, State
from pypjrt.extensions import buffer_layout

F32 = 11
ADD = b"""module { func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<2x2xf32>) {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    %1 = stablehlo.reshape %0 : (tensor<4xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<4xf32>, tensor<2x2xf32>
} }"""
plugin = Plugin(sys.argv[1])
plugin.initialize()
client = Client(plugin)
device = Device(plugin, client._addressable()[0])
abi = plugin.abi


def buffer(*numbers):
    return client.buffer_from_host(array.array("f", numbers), F32, [4], device)


def call(function, **members):
    args = plugin.args(function + "_Args", **members)
    plugin.call(function, args)
    return args


def layout(of):
    found = buffer_layout(of)
    text = found.serialize()
    found.close()
    return text


def order(of):
    told = call("PJRT_Buffer_GetMemoryLayout", buffer=of.address).layout._anon2.tiled
    return ctypes.cast(told.minor_to_major, ctypes.POINTER(ctypes.c_int64))[: told.minor_to_major_size], told.num_tiles


def outcome(act):
    try:
        return act()
    except errors.PjrtError as error:
        return type(error).__name__


QUESTIONS = {
    "type": lambda b: b.element_type,
    "dimensions": lambda b: b.dimensions,
    "device": lambda b: b.device().id,
    "memory": lambda b: b.memory().kind,
    "layout": layout,
    "is deleted": lambda b: b.is_deleted,
    "dynamic": lambda b: b.dynamic_dimension_indices,
    "order": order,
    "bytes": lambda b: b.nbytes,
    "content": lambda b: bytes(b.to_host()).hex(),
}


def ask(name, of):
    for question, answer in QUESTIONS.items():
        print(name, question, outcome(lambda: answer(of)), flush=True)


def alone(name, of):
    """What was asked of no buffer before."""
    for question, answer in QUESTIONS.items():
        program = client.compile(ADD)
        outputs = program(*of)
        program.close()
        print(name, question, [outcome(lambda: answer(output)) for output in outputs], flush=True)


one, two = buffer(1, 2, 3, 4), buffer(10, 20, 30, 40)
ask("from the host", one)
program = client.compile(ADD)
outputs = program(one, two)
kept = buffer_layout(outputs[1])
program.close()
print("its layout", kept.serialize(), flush=True)
kept.close()
for output in outputs:
    ask("output", output)
alone("asked first", (one, two))
# Another thread ends the executable while this one asks for layouts.
for turn in range(100):
    program = client.compile(ADD)
    outputs = program(one, two)
    destroy = plugin.args("PJRT_LoadedExecutable_Destroy_Args", executable=program.address)
    program._state = State.CLOSED
    ender = threading.Thread(target=plugin.fn("PJRT_LoadedExecutable_Destroy"), args=(ctypes.byref(destroy),))
    ender.start()
    texts = {layout(output) for output in outputs for _ in range(4)}
    ender.join()
    assert len(texts) == 2, texts
if len(sys.argv) > 2:
    call("PJRT_Buffer_Delete", buffer=one.address)
    program = client.compile(ADD)
    # Nobody waits for the execution.
    Event.consume = lambda event: None
    outputs = program(one, two)
    program.close()
    for question in ("type", "dimensions", "device", "memory", "layout", "is deleted", "dynamic"):
        for output in outputs:
            told = outcome(lambda: QUESTIONS[question](output))
            assert not isinstance(told, str) or question == "memory", (question, told)
    for question in ("order", "bytes", "content"):
        assert outcome(lambda: QUESTIONS[question](outputs[0])) == "InvalidArgument", question
print("done")
