#!/usr/bin/env python3
"""From nvml.h: functions of the reference library that vendor.c lacks, and a program that calls every function.

    functions.py HEADER VENDOR.C reference OUT.C    functions with answers made of their names
    functions.py HEADER VENDOR.C every OUT.C        calls all, prints results and what was written
"""
import re
import sys

COUNTS = {"count", "infoCount", "sampleCount", "pageCount", "processSamplesCount", "vgpuCount", "sessionCount", "hwbcCount",
          "deviceCount"}
ARRAYS = {"hwbcEntries", "deviceArray", "devices", "clocksMHz", "infos", "samples", "addresses", "timestamps", "pids",
          "vgpuTypeIds", "utilization", "sessionInfos", "sessionInfo"}
# Their arrays have as many elements as there are.
FIXED = {"placements", "gpuInstances", "computeInstances"}
HANDLES = {"nvmlDevice_t", "nvmlUnit_t", "nvmlEventSet_t", "nvmlGpuInstance_t", "nvmlComputeInstance_t", "nvmlGpmSample_t",
           "nvmlSystemEventSet_t"}


class Header:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        found = re.findall(r"nvmlReturn_t\s+DECLDIR\s+(\w+)\s*\((.*?)\);", text, flags=re.S)
        self.functions = [(name, self.parameters(re.sub(r"\s+", " ", parameters).strip())) for name, parameters in found]
        bodies = re.findall(r"typedef\s+(?:struct|union)\s*\w*\s*\{(.*?)\}\s*(\w+)\s*;", text, flags=re.S)
        self.structures = {name: body for body, name in bodies}
        self.aliases = {new: old for old, new in re.findall(r"typedef\s+(nvml\w+)\s+(nvml\w+)\s*;", text)}
        self.versions = set(re.findall(r"#define\s+(nvml\w+_v\d+)\b", text))

    @staticmethod
    def parameters(text):
        """Constant, type, pointer, name."""
        if text == "void":
            return []
        parts = [re.match(r"(const\s+)?(.+?)\s*(\*?)\s*(\w+)$", part.strip()) for part in text.split(",")]
        return [(bool(part[1]), part[2].strip(), bool(part[3]), part[4]) for part in parts]

    def real(self, name):
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def version(self, kind):
        """The version word of a structure that has one."""
        if not re.search(r"\bversion;", self.structures.get(self.real(kind), "")):
            return None
        if kind == "nvmlGpmMetricsGet_t":
            return "NVML_GPM_METRICS_GET_VERSION"
        if kind == "nvmlGpmSupport_t":
            return "NVML_GPM_SUPPORT_VERSION"
        if kind == "nvmlGpuFabricInfoV_t":
            return "nvmlGpuFabricInfo_v3"
        exact = re.sub(r"_t$", "", self.real(kind))
        return exact if exact in self.versions else None

    def list_room(self, kind, i):
        """Statements that give a structure with a list in it room for five elements."""
        body = self.structures.get(self.real(kind), "")
        count = re.search(r"\b(entryCount|count|vgpuCount|numProcArrayEntries|processSamplesCount|vgpuInstanceCount"
                          r"|vgpuProcessCount);", body)
        array = re.search(r"\*\s*(\w+);", body)
        if not count or not array:
            return []
        return [f"(({kind} *)room[{i}])->{count[1]} = 5;", f"(({kind} *)room[{i}])->{array[1]} = (void *)room[7];"]

    def plain(self, kind):
        """No pointers and no handles inside."""
        body = self.structures.get(self.real(kind), "")
        inner = [name for name in re.findall(r"\b(nvml\w+_t)\b", body)]
        return "*" not in body and not HANDLES.intersection(inner) and all(self.plain(name) for name in inner)


def signature(name, parameters):
    text = ", ".join(f"{'const ' if const else ''}{kind} {'*' if pointer else ''}{x}" for const, kind, pointer, x in parameters)
    return f"nvmlReturn_t {name}({text or 'void'})"


def reference(header, there):
    """Answers: numbers and texts made of the function's name."""
    lines = ["/* Written by functions.py. */", '#include "reference.h"', ""]
    for name, parameters in header.functions:
        if name in there:
            continue
        body = ["    if (!reference_started())", "        return NVML_ERROR_UNINITIALIZED;"]
        pointers = [(const, kind, x) for const, kind, pointer, x in parameters if pointer]
        counts = [x for _, kind, x in pointers if x in COUNTS and kind == "unsigned int"]
        arrays = [x for _, _, x in pointers if x in ARRAYS] if counts else []
        for const, kind, pointer, x in parameters:
            if kind == "nvmlDevice_t" and not pointer:
                body += [f"    if (!{x})", "        return NVML_ERROR_INVALID_ARGUMENT;"]
            elif pointer and x not in arrays and x not in FIXED:
                body += [f"    if (!{x})", "        return NVML_ERROR_INVALID_ARGUMENT;"]
        for const, kind, x in pointers:
            version = header.version(kind)
            if version:
                body += [f"    if ({x}->version != {version})", "        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;"]
        texts = {x: parameters[i + 1] for i, (_, kind, pointer, x) in enumerate(parameters)
                 if pointer and kind == "char" and i + 1 < len(parameters)}
        for const, kind, x in pointers:
            if const or x == "pciInfo" or x in counts and arrays:
                continue
            if x in arrays:
                body += [f"    if (!reference_fits({counts[0]}, {x}))", "        return NVML_ERROR_INSUFFICIENT_SIZE;"]
            if x in arrays and kind not in HANDLES:
                body.append(f'    reference_fill("{name}", {x}, 3 * sizeof *{x});')
            elif x in arrays or x in FIXED and kind in HANDLES:
                body += [f"    for (int i = 0; i < 3 && {x}; i++)", f"        {x}[i] = reference_handle(i);"]
            elif x in FIXED:
                body += [f"    if ({x})", f'        reference_fill("{name}", {x}, 3 * sizeof *{x});']
            elif x in counts and any(other in FIXED for _, _, other in pointers):
                body.append(f"    *{x} = 3;")
            elif kind in HANDLES:
                body.append(f"    *{x} = reference_handle(1);")
            elif kind == "char" and x in texts and texts[x][2]:
                body += [f'    if (!reference_text("{name}", {x}, *{texts[x][3]}))', "        return NVML_ERROR_INSUFFICIENT_SIZE;"]
            elif kind == "char" and x in texts:
                body += [f'    if (!reference_text("{name}", {x}, {texts[x][3]}))', "        return NVML_ERROR_INSUFFICIENT_SIZE;"]
            elif kind == "char":
                body.append(f'    reference_text("{name}", {x}, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);')
            elif any(texts.get(text, (0, 0, 0, ""))[3] == x for text in texts):
                body.append(f"    *{x} = 7;")
            elif kind == "unsigned long" and x in ("nodeSet", "cpuSet"):
                body.append(f'    reference_fill("{name}", {x}, {x}Size * sizeof *{x});')
            elif x == "pstates":
                body.append(f'    reference_fill("{name}", {x}, size / sizeof *{x} * sizeof *{x});')
            elif header.version(kind) and header.plain(kind):
                rest = f"(char *){x} + 4, sizeof *{x} - 4"
                body.append(f'    reference_fill("{name}", {rest});')
            elif header.plain(kind):
                body.append(f'    reference_fill("{name}", {x}, sizeof *{x});')
            else:
                body.append(f"    reference_has_pointers({x});")
        body.append("    return NVML_SUCCESS;")
        unused = [f"    (void){x};" for _, _, _, x in parameters]
        lines += [signature(name, parameters) + " {", *unused, *body, "}", ""]
    return "\n".join(lines)


def every(header, _there):
    calls = []
    for name, parameters in header.functions:
        if re.match(r"nvml(Init|Shutdown)|nvml.*(EventSet|Sample)(Free|Wait|Create|Alloc)", name):
            continue
        before, arguments = [], []
        for i, (const, kind, pointer, x) in enumerate(parameters):
            version = header.version(kind) if pointer else None
            if version:
                before.append(f"*(unsigned int *)room[{i}] = {version};")
            if pointer and kind == "char" and const:
                arguments.append({"uuid": '"GPU-1"', "pciBusId": '"00000000:08:00.0"'}.get(x, '"text"'))
            elif pointer:
                if x in COUNTS | {"size", "length", "bufferSize"} and kind == "unsigned int":
                    before.append(f"*(unsigned int *)room[{i}] = 40;")
                before += header.list_room(kind, i)
                if kind == "nvmlFieldValue_t":
                    before.append(f"((nvmlFieldValue_t *)room[{i}])->fieldId = 4;")
                arguments.append(f"(void *)room[{i}]")
            elif kind in HANDLES:
                arguments.append({"nvmlDevice_t": "device", "nvmlEventSet_t": "set", "nvmlGpmSample_t": "sample"}.get(kind, f"other_{kind}"))
            elif x == "valuesCount":
                arguments.append("1")
            elif x in ("length", "size"):
                arguments.append("80")
            elif x in ("cpuSetSize", "nodeSetSize"):
                arguments.append("4")
            else:
                arguments.append("1")
        objects = [str(i) for i, (_, kind, pointer, _) in enumerate(parameters) if pointer and kind in HANDLES]
        if objects:
            after = " ".join(f"hide_objects(room[{i}]);" for i in objects)
            calls.append(f'    CALL_OBJECTS({name}, {" ".join(before)}, {after}, {", ".join(arguments)});')
            continue
        calls.append(f'    CALL({name}, {" ".join(before)}, {", ".join(arguments)});' if arguments else f"    CALL0({name});")
    return '/* Written by functions.py. */\n#include "every.h"\n\nvoid call_every_function(void) {\n' + "\n".join(calls) + "\n}\n"


def main():
    header_path, vendor, what, out = sys.argv[1:]
    header = Header(header_path)
    with open(vendor, encoding="utf-8") as file:
        there = set(re.findall(r"^nvmlReturn_t (\w+)\(", file.read(), flags=re.M))
    with open(out, "w", encoding="utf-8") as file:
        file.write({"reference": reference, "every": every}[what](header, there))


main()
