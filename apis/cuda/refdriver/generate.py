"""Writes what follows from cuda.h alone, so that every function of the header exists in the library:

  names.h      renames the driver's functions where they are implemented, so that calls among
               them are neither locked nor traced a second time
  entries.c    the exported functions: lock, call the implementation (or report that there is none), trace
  symbols.c    the table of `cuGetProcAddress`: name, first version and address
  errors.c     the names of errors

usage: generate.py OUTDIR INCLUDE            names.h and errors.c
       generate.py OUTDIR INCLUDE OBJECT...  entries.c and symbols.c, from what the objects implement
"""

import re
import subprocess
import sys
from pathlib import Path

OUT, INCLUDE = Path(sys.argv[1]), Path(sys.argv[2])
OBJECTS = sys.argv[3:]

# May be called before cuInit.
ANYTIME = {"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress_v2", "cuGetProcAddress", "cuGetExportTable"}
# Calls the rest of the driver by itself, so it must not hold the lock.
UNLOCKED = {"cuGetExportTable", "cuGetProcAddress", "cuGetProcAddress_v2"}
INTEGERS = {
    "size_t": "%zu", "int": "%d", "unsigned int": "%u", "unsigned long long": "%llu", "unsigned char": "%hhu",
    "unsigned short": "%hu", "cuuint32_t": "%u", "cuuint64_t": "%lu", "CUdevice": "%d", "float": "%g",
}
# Members of structures that tell what a call does.
MEMBERS = {
    "const CUDA_MEMCPY2D *": (("WidthInBytes", "%zu"), ("Height", "%zu")),
    "const CUDA_MEMCPY3D *": (("WidthInBytes", "%zu"), ("Height", "%zu"), ("Depth", "%zu")),
    "const CUlaunchConfig *": (("gridDimX", "%u"), ("gridDimY", "%u"), ("gridDimZ", "%u"), ("blockDimX", "%u"),
                               ("blockDimY", "%u"), ("blockDimZ", "%u"), ("sharedMemBytes", "%u")),
}


def preprocessed(*options):
    command = ["gcc", "-E", "-P", f"-I{INCLUDE}", *options, str(INCLUDE / "cuda.h")]
    return " ".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def functions(text):
    """name -> [(type, name)] of every function of the header."""
    found = {}
    for name, arguments in re.findall(r"CUresult (cu[A-Z]\w*)\(([^;{]*?)\);", text):
        parameters = []
        for argument in arguments.split(","):
            match = re.fullmatch(r"(.*?[\s*])(\w+)(\[\])?", argument.strip())
            if argument.strip() != "void":
                parameters.append((match[1].strip() + (" *" if match[3] else ""), match[2]))
        found[name] = parameters
    return found


def traced(parameters, enums):
    """Format and arguments of the values that are the same in a direct and in a remoted run."""
    form, values = [], []
    for kind, name in parameters:
        if kind in INTEGERS or kind in enums:
            form.append(f"{name}={INTEGERS.get(kind, '%d')}")
            values.append(name)
        elif kind == "const char *" and name in ("symbol", "name", "fname"):
            form.append(f"{name}=%s")
            values.append(f"({name} ? {name} : \"\")")
        elif kind == "CUfunction":
            form.append("kernel=%s")
            values.append(f"trace_kernel({name})")
        elif kind == "CUkernel":
            form.append("kernel=%s")
            values.append(f"trace_kernel((CUfunction){name})")
        elif kind == "CUstream":
            form.append("stream=%s")
            values.append(f"trace_stream({name})")
        elif kind == "const CUlaunchConfig *":
            form.append("stream=%s attributes=%s")
            values.append(f"{name} ? trace_stream({name}->hStream) : \"\"")
            values.append(f"trace_attributes({name})")
        elif name == "kernelParams":
            packed = "extra" if ("void **", "extra") in parameters else "NULL"
            form.append("parameters=%s")
            values.append(f"trace_parameters(f, {name}, {packed})")
        for member, member_form in MEMBERS.get(kind, ()):
            form.append(f"{member}={member_form}")
            values.append(f"({name} ? {name}->{member} : 0)")
    return "".join(" " + part for part in form), values


def entry(name, parameters, implemented, enums):
    base = re.sub(r"_pts[zd]$|_ptds$", "", name)
    flags = ["CALL_PER_THREAD"] if base != name else []
    flags += ["CALL_ANYTIME"] if base in ANYTIME else []
    flags += ["CALL_UNLOCKED"] if base in UNLOCKED else []
    flags = " | ".join(flags) or "0"
    declared = ", ".join(f"{kind} {parameter}" for kind, parameter in parameters) or "void"
    passed = ", ".join(parameter for _, parameter in parameters)
    form, values = traced(parameters, enums)
    lines = []
    if base in implemented:
        lines.append(f"CUresult implement_{base}({declared});") if base == name else None
        call = f"implement_{base}({passed})"
    else:
        call = "CUDA_ERROR_NOT_SUPPORTED"
    lines += [
        f"CUresult {name}({declared})", "{",
        f"    CUresult call_result = call_begin({flags});", "",
        "    if (call_result == CUDA_SUCCESS)",
        f"        call_result = {call};",
    ]
    if base not in implemented:
        lines += [f"    (void){parameter};" for _, parameter in parameters]
    arguments = "".join(", " + value for value in values)
    lines += [
        "    if (trace_wanted)",
        f'        trace_call(call_result, "{name}{form}"{arguments});',
        f"    call_end({flags});", "    return call_result;", "}", "",
    ]
    return lines


def write_entries():
    text = preprocessed("-D__CUDA_API_VERSION_INTERNAL")
    listed = subprocess.run(["nm", "--defined-only", *OBJECTS], check=True, capture_output=True, text=True).stdout
    implemented = set(re.findall(r" T implement_(\w+)", listed))
    enums = set(re.findall(r"typedef enum \w* ?\{[^}]*\} (\w+);", text))
    lines = ["/* Generated by generate.py. */", "#define __CUDA_API_VERSION_INTERNAL", "#include <cuda.h>", "",
             '#include "call.h"', ""]
    for name, parameters in sorted(functions(text).items(), key=lambda item: (bool(re.search("_pt[sd][zs]$", item[0])), item[0])):
        lines += entry(name, parameters, implemented, enums)
    (OUT / "entries.c").write_text("\n".join(lines))
    missing = sorted(name for name in functions(text) if re.sub(r"_pts[zd]$|_ptds$", "", name) not in implemented)
    (OUT / "not-supported.txt").write_text("\n".join(missing) + "\n")
    write_symbols(functions(text))


def split(name):
    """cuX_v2_ptsz -> (cuX, 2, _ptsz)"""
    match = re.fullmatch(r"(cu\w+?)(?:_v(\d))?(_ptsz|_ptds)?", name)
    return match[1], int(match[2] or 1), match[3] or ""


def write_symbols(names):
    """cudaTypedefs.h has the first version of each variant, in the order of the variants' suffixes."""
    versions, variants = {}, {}
    typedefs = (INCLUDE / "cudaTypedefs.h").read_text()
    for base, version, suffix in set(re.findall(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", typedefs)):
        versions.setdefault((base, suffix), []).append(int(version))
    for name in names:
        base, variant, suffix = split(name)
        variants.setdefault((base, suffix), []).append((variant, name))
    lines = ["/* Generated by generate.py. */", "#define __CUDA_API_VERSION_INTERNAL", "#include <cuda.h>", "",
             '#include "symbols.h"', "", "const struct symbol symbols[] = {"]
    for (base, suffix), known in sorted(variants.items()):
        first = sorted(versions.get((base, suffix), []))
        if len(first) != len(known):
            raise SystemExit(f"{base}{suffix}: {len(known)} variants, but versions {first}")
        for (_, name), version in zip(sorted(known), first):
            lines.append(f'    {{"{base}", {version}, {int(bool(suffix))}, (void *)(uintptr_t){name}}},')
    lines += ["    {NULL, 0, 0, NULL},", "};", ""]
    (OUT / "symbols.c").write_text("\n".join(lines))


def write_names():
    # An older variant keeps its own name where the header has renamed the current one to another.
    names = [f"#define {name} implement_{name}" for name in sorted(functions(preprocessed()))]
    (OUT / "names.h").write_text("\n".join(["/* Generated by generate.py. */", *names, ""]))
    errors = re.search(r"typedef enum cudaError_enum \{(.*?)\}", preprocessed())[1]
    lines = ["/* Generated by generate.py. */", '#include "errors.h"', "", "const struct error_name error_names[] = {"]
    for name, value in re.findall(r"(\w+) = (\d+)", errors):
        lines.append(f'    {{{value}, "{name}"}},')
    lines += ["    {0, NULL},", "};", ""]
    (OUT / "error_names.c").write_text("\n".join(lines))


write_entries() if OBJECTS else write_names()
