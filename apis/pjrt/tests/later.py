"""Functions of versions behind 0.81: buffers that get their content later, and what else they have brought. FILE: the plug-in."""
import array
import ctypes
import sys
import threading

from pypjrt import errors
from pypjrt._loader import Plugin
from pypjrt.client import Buffer, Client, Device, Event, Executable, _dense_layout
from pypjrt.compile_options import CompileOptions

F32, S32, P = 11, 4, ctypes.c_void_p
plugin = Plugin(sys.argv[1])
plugin.initialize()
client = Client(plugin)
device = Device(plugin, client._addressable()[0])
memory = device.default_memory()
abi = plugin.abi


def buffer(*numbers):
    return client.buffer_from_host(array.array("f", numbers), F32, [len(numbers)], device)


def numbers(of, kind="f"):
    got = array.array(kind)
    got.frombytes(bytes(of.to_host()))
    return list(got)


def call(function, **members):
    args = plugin.args(function + "_Args", **members)
    plugin.call(function, args)
    return args


def shaped(dims, **members):
    """Members that describe a shape, and what must stay alive meanwhile."""
    layout, kept = _dense_layout(abi, dims)
    list_of = (ctypes.c_int64 * len(dims))(*dims)
    kept = (layout, kept, list_of)
    return {"shape_dims": ctypes.cast(list_of, P), "shape_num_dims": len(dims), "shape_element_type": F32,
            "shape_layout": ctypes.addressof(layout), **members}, kept


def told(name, act):
    try:
        print(name, act())
    except errors.PjrtError as error:
        print(name, type(error).__name__, str(error).split("\n")[0])
    sys.stdout.flush()


def alias(code=0, source=None, message=b""):
    members, kept = shaped([4], client=client.address, memory=memory.address)
    made = call("PJRT_Client_CreateAliasBuffer", **members)
    later = Buffer(plugin, made.alias_buffer)
    text = ctypes.create_string_buffer(message)
    try:
        call("PJRT_Client_FulfillAliasBuffer", client=client.address, buffer=source.address if source else None, status_code=code,
             error_message=ctypes.cast(text, P), error_message_size=len(message), fulfill_alias_buffer_cb=made.fulfill_alias_buffer_cb)
    except errors.PjrtError as error:
        print("  fulfilled with", type(error).__name__)
    return numbers(later)


def future(offset, size, code=0, message=b"", wait_first=False):
    source = buffer(*range(1, 9))
    made = call("PJRT_Buffer_CopyRawToHostFuture", buffer=source.address, offset=offset, transfer_size=size)
    to = (ctypes.c_float * (size // 4))()
    args, text = abi.PJRT_Buffer_CopyRawToHostFuture_Callback_Args(), ctypes.create_string_buffer(message)
    args.struct_size, args.callback_data, args.error_code = ctypes.sizeof(args), made.callback_data, code
    args.error_message, args.error_message_size, args.dst = ctypes.cast(text, P), len(message), ctypes.addressof(to)
    ready = ctypes.CFUNCTYPE(None, P)(made.future_ready_callback)
    event = Event(plugin, made.event)
    if wait_first:
        threading.Timer(0.05, lambda: ready(ctypes.byref(args))).start()
    else:
        ready(ctypes.byref(args))
    source.close()
    event.consume()
    return list(to)


def donate(code=0, message=b""):
    source = buffer(1, 2, 3, 4)
    made = call("PJRT_Buffer_DonateWithControlDependency", buffer=source.address)
    args, text = abi.PJRT_Buffer_DonateWithControlDependency_Callback_Args(), ctypes.create_string_buffer(message)
    args.struct_size, args.callback_data, args.error_code = ctypes.sizeof(args), made.callback_data, code
    args.error_message, args.error_message_size = ctypes.cast(text, P), len(message)
    ctypes.CFUNCTYPE(None, P)(made.dependency_ready_callback)(ctypes.byref(args))
    return source.is_deleted, numbers(Buffer(plugin, made.out_buffer))


def bitcast():
    source, dims = buffer(1, 2, 3, 4), (ctypes.c_int64 * 2)(2, 2)
    layout, kept = _dense_layout(abi, [2, 2])
    made = Buffer(plugin, call("PJRT_Buffer_Bitcast", buffer=source.address, element_type=S32, dims=ctypes.cast(dims, P), num_dims=2,
                               device_layout=ctypes.addressof(layout)).out_buffer)
    return made.dimensions, numbers(made, "i"), source.is_deleted


def literal():
    spec, dims = abi.PJRT_ShapeSpec(), (ctypes.c_int64 * 1)(4)
    spec.struct_size, spec.dims, spec.num_dims, spec.element_type = ctypes.sizeof(spec), ctypes.cast(dims, P), 1, F32
    manager = call("PJRT_Client_CreateBuffersForAsyncHostToDevice", client=client.address, num_shape_specs=1,
                   shape_specs=ctypes.cast(ctypes.pointer(spec), P), memory=memory.address).transfer_manager
    members, kept = shaped([4], transfer_manager=manager, buffer_index=0)
    data = (ctypes.c_float * 4)(9, 8, 7, 6)
    done = call("PJRT_AsyncHostToDeviceTransferManager_TransferLiteral", data=ctypes.cast(data, P), **members).done_with_h2d_transfer
    if done:
        Event(plugin, done).consume()
    made = call("PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer", transfer_manager=manager, buffer_index=0).buffer_out
    got = numbers(Buffer(plugin, made))
    call("PJRT_AsyncHostToDeviceTransferManager_Destroy", transfer_manager=manager)
    return got


def layout_of(tiles=(), strides=False):
    """A layout of the program's own, and what must stay alive meanwhile."""
    order, sizes, all_tiles = (ctypes.c_int64 * 2)(0, 1), (ctypes.c_size_t * 2)(2, 1), (ctypes.c_int64 * 3)(*tiles, *[7] * (3 - len(tiles)))
    asked = abi.PJRT_Buffer_MemoryLayout()
    asked.struct_size, asked.type = ctypes.sizeof(asked), 1 if strides else 0
    tiled = asked._anon2.tiled
    tiled.struct_size = 56
    tiled.minor_to_major, tiled.minor_to_major_size = ctypes.cast(order, P), 2
    # Where there are strides this is anything.
    tiled.tile_dims, tiled.tile_dim_sizes, tiled.num_tiles = (1, 1, 99) if strides else (ctypes.cast(all_tiles, P), ctypes.cast(sizes, P), len(tiles) - 1 if tiles else 0)
    return asked, (order, sizes, all_tiles)


def layout(tiles=(), strides=False):
    """A buffer from the host with such a layout."""
    asked, kept = layout_of(tiles, strides)
    data, dims = array.array("f", range(6)), (ctypes.c_int64 * 2)(2, 3)
    made = call("PJRT_Client_BufferFromHostBuffer", client=client.address, data=data.buffer_info()[0], type=F32, num_dims=2,
                dims=ctypes.cast(dims, P), device=device.address, host_buffer_semantics=0, device_layout=ctypes.addressof(asked)).buffer
    return numbers(Buffer(plugin, made))


def with_tiles(function, tiles=(8, 128, 2), **members):
    """The same for the functions that describe a shape: the layout of what they make."""
    asked, kept = layout_of(tiles)
    dims = (ctypes.c_int64 * 2)(2, 3)
    made = call(function, shape_dims=ctypes.cast(dims, P), shape_num_dims=2, shape_element_type=F32,
                shape_layout=ctypes.addressof(asked), **members)
    made = made.alias_buffer if function.endswith("AliasBuffer") else made.buffer
    told = call("PJRT_Buffer_GetMemoryLayout", buffer=made).layout._anon2.tiled
    sizes = ctypes.cast(told.tile_dim_sizes, ctypes.POINTER(ctypes.c_size_t))[: told.num_tiles]
    return sizes, ctypes.cast(told.tile_dims, ctypes.POINTER(ctypes.c_int64))[: sum(sizes)]


def to_host(tiles):
    asked, kept = layout_of(tiles)
    source = client.buffer_from_host(array.array("f", range(6)), F32, [2, 3], device)
    to = (ctypes.c_float * 6)()
    made = call("PJRT_Buffer_ToHostBuffer", src=source.address, host_layout=ctypes.addressof(asked), dst=ctypes.addressof(to), dst_size=24)
    Event(plugin, made.event).consume()
    return list(to)


def bitcast_tiles():
    asked, kept = layout_of((8, 128, 2))
    source, dims = client.buffer_from_host(array.array("f", range(6)), F32, [6], device), (ctypes.c_int64 * 2)(2, 3)
    return call("PJRT_Buffer_Bitcast", buffer=source.address, element_type=S32, dims=ctypes.cast(dims, P), num_dims=2,
                device_layout=ctypes.addressof(asked)).out_buffer is not None


def manager(*all_tiles):
    """Buffers that are filled in parts: each with its layout, None: with none."""
    dims, kept = (ctypes.c_int64 * 2)(2, 3), [layout_of(tiles) if tiles is not None else None for tiles in all_tiles]
    specs, layouts = (abi.PJRT_ShapeSpec * len(kept))(), (P * len(kept))(*[one and ctypes.addressof(one[0]) for one in kept])
    for spec in specs:
        spec.struct_size, spec.dims, spec.num_dims, spec.element_type = ctypes.sizeof(spec), ctypes.cast(dims, P), 2, F32
    made = call("PJRT_Client_CreateBuffersForAsyncHostToDevice", client=client.address, num_shape_specs=len(kept),
                shape_specs=ctypes.cast(specs, P), memory=memory.address, device_layouts=ctypes.cast(layouts, P),
                num_device_layouts=len(kept)).transfer_manager
    count = call("PJRT_AsyncHostToDeviceTransferManager_BufferCount", transfer_manager=made).buffer_count
    call("PJRT_AsyncHostToDeviceTransferManager_Destroy", transfer_manager=made)
    return count


def canonical(dims, tiles=None, kind=0):
    """Shapes as the plug-in writes them, twice: the second ends what the first has left."""
    asked, kept = layout_of(tiles) if tiles is not None else (None, None)
    list_of, texts = (ctypes.c_int64 * max(len(dims), 1))(*dims), []
    for _ in range(2):
        made = call("PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace", topology=topology(), memory_space_kind_id=kind,
                    dims=ctypes.cast(list_of, P), num_dims=len(dims), element_type=F32, layout=asked and ctypes.addressof(asked))
        texts.append(ctypes.string_at(made.serialized_shape, made.serialized_shape_size).hex())
        ctypes.CFUNCTYPE(None, P)(made.serialized_shape_deleter)(made.serialized_shape)
    return texts


ADD = b"""module { func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
} }"""


def topology():
    return call("PJRT_Client_TopologyDescription", client=client.address).topology


def load():
    """An executable that no client has compiled."""
    program, options, form = (ctypes.create_string_buffer(t, len(t)) for t in (ADD, CompileOptions().encode(abi), b"mlir"))
    wanted = plugin.args("PJRT_Program", code=ctypes.cast(program, P), code_size=len(ADD), format=ctypes.cast(form, P), format_size=4)
    whole = call("PJRT_Compile", topology=topology(), program=ctypes.addressof(wanted), client=client.address,
                 compile_options=ctypes.cast(options, P), compile_options_size=len(options)).executable
    loaded = call("PJRT_Client_Load", client=client.address, executable=whole).loaded_executable
    return numbers(Executable(plugin, loaded, client)(buffer(1, 2, 3, 4), buffer(10, 20, 30, 40))[0])


def load_loaded():
    add = client.compile(ADD)
    whole = call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=add.address).executable
    return call("PJRT_Client_Load", client=client.address, executable=whole).loaded_executable != 0


def kinds():
    args = call("PJRT_TopologyDescription_GetMemorySpaceKindIds", topology=topology())
    return ctypes.cast(args.memory_space_kind_ids, ctypes.POINTER(ctypes.c_int))[: args.num_memory_space_kind_ids]


told("uninitialized", lambda: len(client.uninitialized_buffer(F32, [4, 3], memory).to_host()))
told("an error", lambda: client.error_buffer(memory, 13, "no such number", dtype=F32, dims=[4]).to_host())
told("alias", lambda: alias(source=buffer(5, 6, 7, 8)))
told("alias that fails", lambda: alias(code=13, message=b"it never came"))
told("future", lambda: future(4, 12))
told("future, waited for first", lambda: future(0, 32, wait_first=True))
told("future of nothing", lambda: future(8, 0))
told("future without memory", lambda: future(0, 8, code=8, message=b"no memory"))
told("future behind the end", lambda: future(24, 12))
told("donated", donate)
told("donated, and it fails", lambda: donate(code=13, message=b"what it depends on"))
told("bitcast", bitcast)
told("literal", literal)
told("layout", layout)
told("layout of strides", lambda: layout(strides=True))
told("layout of a tile", lambda: layout(tiles=(8, 128)))
told("layout of tiles", lambda: layout(tiles=(8, 128, 2)))
told("to the host, densely", lambda: to_host(()))
told("to the host, in tiles", lambda: to_host((8, 128, 2)))
told("bitcast to tiles", bitcast_tiles)
told("uninitialized tiles", lambda: with_tiles("PJRT_Client_CreateUninitializedBuffer", client=client.address, memory=memory.address))
told("an error in tiles", lambda: with_tiles("PJRT_Client_CreateErrorBuffer", client=client.address, memory=memory.address, error_code=13))
told("alias in tiles", lambda: with_tiles("PJRT_Client_CreateAliasBuffer", client=client.address, memory=memory.address))
told("buffers in parts", lambda: manager((), None, ()))
told("canonical", lambda: canonical([2, 3]))
told("canonical, of no dimensions", lambda: canonical([]))
told("canonical, of another memory", lambda: canonical([2, 3], kind=99))
told("canonical, with a layout", lambda: canonical([2, 3], ()))
told("canonical, in tiles", lambda: canonical([2, 3], (8, 128, 2)))
mapped = bytearray(8192)
told("mapped", lambda: client.dma_map(mapped) is not None)
told("unmapped", lambda: client.dma_unmap(memoryview(mapped)))
told("load", load)
told("load what was loaded", load_loaded)
told("kinds", kinds)
told("poison", lambda: call("PJRT_Device_PoisonExecution", device=device.address, launch_id=7, error_code=13).poisoned)
tracked = call("PJRT_Device_CreateAsyncTrackingEvent", device=device.address).event
told("tracked", lambda: call("PJRT_AsyncTrackingEvent_Destroy", event=tracked).event is not None)
told("processes", lambda: client.update_global_process_info([(0, 1, 1), (1, 5, 2)]))
told("alive", lambda: numbers(client.compile(ADD)(buffer(1, 2, 3, 4), buffer(4, 3, 2, 1))[0]))
