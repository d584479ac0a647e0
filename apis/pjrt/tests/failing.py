"""Executions that fail after they were sent: their outputs, what is computed from them and their events tell why. FILE: the plug-in."""
import array
import sys

from pypjrt import errors
from pypjrt._loader import Plugin
from pypjrt.client import Client, Device

F32 = 11
ADD = b"""module { func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
} }"""
plugin = Plugin(sys.argv[1])
plugin.initialize()
client = Client(plugin)
device = Device(plugin, client._addressable()[0])
add = client.compile(ADD)


def buffer(*numbers):
    return client.buffer_from_host(array.array("f", numbers), F32, [4], device)


def told(act):
    try:
        return act()
    except errors.PjrtError as error:
        return type(error).__name__, "deleted" in str(error)


def run(*inputs):
    outputs = add(*inputs)
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


ones, gone = buffer(1, 1, 1, 1), buffer(2, 2, 2, 2)
plugin.call("PJRT_Buffer_Delete", plugin.args("PJRT_Buffer_Delete_Args", buffer=gone.address))
print("deleted:", told(lambda: bytes(run(gone, ones).to_host()).hex()))
print("after it:", told(lambda: bytes(run(run(gone, ones), ones).to_host()).hex()))
print("alive:", told(lambda: bytes(run(run(ones, ones), ones).to_host()).hex()))
