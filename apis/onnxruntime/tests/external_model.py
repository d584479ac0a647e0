#!/usr/bin/env python3
"""Writes models whose weights are in other files: FOLDER/model.onnx, FOLDER/nested.onnx, FOLDER/weights/w.bin, FOLDER/b.bin; and
two that make no session: FOLDER/foreign.onnx has an operator that nothing declares, FOLDER/kernel.onnx one without an implementation.

The first computes out = in + w + b + c: COUNT floats, of which w and b are in files (w behind 4,096 bytes of zeros), and c is a
number in the model. The second computes the same; w is the main graph's, b an initializer of a branch in a branch, and a branch that
is not taken has one, too.
"""
import array
import os
import sys


def number(value: int) -> bytes:
    """A varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(place: int, value) -> bytes:
    """A member of a message: a number, or bytes."""
    if isinstance(value, int):
        return number(place << 3) + number(value)
    value = value.encode() if isinstance(value, str) else value
    return number(place << 3 | 2) + number(len(value)) + value


def entry(key: str, value: str) -> bytes:
    return field(13, field(1, key) + field(2, value))


def tensor(name: str, count: int, data: bytes) -> bytes:
    return field(1, count) + field(2, 1) + data + field(8, name)


def external(name: str, count: int, location: str, offset: int) -> bytes:
    places = entry("location", location) + entry("offset", str(offset)) + entry("length", str(4 * count))
    return tensor(name, count, places + field(14, 1))


def value(name: str, count: int, kind: int = 1) -> bytes:
    shape = field(1, field(1, count))
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def node(kind: str, inputs: list[str], output: str, more: bytes = b"") -> bytes:
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind) + more


def floats(count: int, first: float) -> bytes:
    return array.array("f", (first + place % 1000 for place in range(count))).tobytes()


def named(value_name: str) -> bytes:
    """An output of a branch, whose type follows from its node."""
    return field(1, value_name)


def branches(condition: str, output: str, then: bytes, otherwise: bytes) -> bytes:
    def graph_of(name: str, graph: bytes) -> bytes:
        return field(5, field(1, name) + field(6, graph) + field(20, 5))

    return node("If", [condition], output, graph_of("then_branch", then) + graph_of("else_branch", otherwise))


def adding(name: str, weights: bytes, output: str) -> bytes:
    """A graph that adds an initializer of its own to `s`."""
    return b"".join([field(1, node("Add", ["s", name], output)), field(2, output), field(5, weights), field(12, named(output))])


def model_of(graph: bytes) -> bytes:
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def nested(count: int) -> bytes:
    constant = field(1, "value") + field(5, tensor("", 1, field(9, floats(1, 7.0)))) + field(20, 4)
    inner = branches("yes", "inner", adding("b", external("b", count, "b.bin", 0), "sum"), adding("o", external("o", count, "b.bin", 0), "none"))
    then = b"".join([field(1, inner), field(2, "then"), field(12, named("inner"))])
    true = field(1, 1) + field(2, 9) + field(9, b"\x01") + field(8, "yes")
    return model_of(b"".join([
        field(1, node("Constant", [], "c", field(5, constant))),
        field(1, node("Add", ["in", "w"], "s")),
        field(1, branches("yes", "t", then, adding("v", external("v", count, "weights/w.bin", 4096), "other"))),
        field(1, node("Add", ["t", "c"], "out")),
        field(2, "nested"),
        field(5, external("w", count, "weights/w.bin", 4096)),
        field(5, true),
        field(11, value("in", count)),
        field(12, value("out", count)),
    ]))


def of_one(operator: bytes, count: int, kind: int, more: bytes = b"") -> bytes:
    graph = field(1, operator) + field(2, "one") + field(11, value("in", count, kind)) + field(12, value("out", count, kind))
    return model_of(graph) + more


def main() -> None:
    folder, count = sys.argv[1], int(sys.argv[2])
    os.makedirs(os.path.join(folder, "weights"), exist_ok=True)
    with open(os.path.join(folder, "weights", "w.bin"), "wb") as file:
        file.write(bytes(4096) + floats(count, 0.25))
    with open(os.path.join(folder, "b.bin"), "wb") as file:
        file.write(floats(count, 5000.0))
    constant = field(1, "value") + field(5, tensor("", 1, field(9, floats(1, 7.0)))) + field(20, 4)
    graph = b"".join([
        field(1, node("Constant", [], "c", field(5, constant))),
        field(1, node("Add", ["in", "w"], "s")),
        field(1, node("Add", ["s", "b"], "t")),
        field(1, node("Add", ["t", "c"], "out")),
        field(2, "external"),
        field(5, external("w", count, "weights/w.bin", 4096)),
        field(5, external("b", count, "b.bin", 0)),
        field(11, value("in", count)),
        field(12, value("out", count)),
    ])
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(model_of(graph))
    with open(os.path.join(folder, "nested.onnx"), "wb") as file:
        file.write(nested(count))
    with open(os.path.join(folder, "foreign.onnx"), "wb") as file:
        file.write(of_one(node("Weird", ["in"], "out", field(7, "my")), count, 1, field(8, field(1, "my") + field(2, 1))))
    with open(os.path.join(folder, "kernel.onnx"), "wb") as file:
        file.write(of_one(node("Erf", ["in"], "out"), count, 2))


main()
