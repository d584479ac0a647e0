"""A library that nobody has seen: header, code and program, with names made up anew, are virtualized with what a root has installed.

`virtualizes` is called with a folder of a root and a function that runs a command there.
"""

import random
import re
import string

HEADER = """#include <stddef.h>
#include <stdint.h>

typedef int @_result;
#define @_OK 0
#define @_REFUSED 7
#define @_MISSING 8
#define @_GONE 9

typedef struct @_pad_s *@_pad;

@_result @_open(unsigned seed, @_pad *pad);
@_result @_close(@_pad pad);
@_result @_write(@_pad pad, const void *data, size_t bytes);
@_result @_mix(@_pad pad, uint64_t *result);
"""
LIBRARY = """#include "@.h"
#include <stdlib.h>

struct @_pad_s { uint64_t state; };

@_result @_open(unsigned seed, @_pad *pad) { *pad = malloc(sizeof **pad); (*pad)->state = seed; return @_OK; }
@_result @_close(@_pad pad) { free(pad); return @_OK; }
@_result @_write(@_pad pad, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) pad->state = pad->state * 1099511628211u + at[i] + FACTOR;
    return @_OK;
}
@_result @_mix(@_pad pad, uint64_t *result) { *result = pad->state ^ pad->state >> 17; return @_OK; }
"""
PROGRAM = """#include "@.h"
#include <stdio.h>
#include <string.h>

int main(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    @_pad pad;
    uint64_t result = 0;
    if (@_open(FACTOR, &pad) != @_OK || @_write(pad, "text of a program", 17) != @_OK || @_mix(pad, &result) != @_OK) return 1;
    printf("result %llu, closed %d\\n", (unsigned long long)result, @_close(pad));
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "lib@.so.3")) { fprintf(stderr, "%s", strchr(line, '/')); break; }
    return 0;
}
"""
# What a person answers to the questions of `aviary spec init`.
ANSWERS = {
    r'api\("[^"]*", "[^"]*", "[^"]*"\);': 'api("@", "3.1", "lib@.so.3");\ndropin("lib@.so.3");',
    r"success\(@_OK\);(?! *failure)": "success(@_OK); failure(@_REFUSED); unsupported(@_MISSING); lost(@_GONE);",
    r"argument\(pad\) \{ placeholder\(.*\); \}": "argument(pad) { out; element { allocate; } }",
    r"argument\(data\) \{ .*placeholder\(.*\); \}": "argument(data) { in; buffer(bytes); }",
    r"argument\(result\) \{ placeholder\(.*\); \}": "argument(result) { out; buffer(1); }",
}


def answered(text, name):
    for question, answer in ANSWERS.items():
        text = re.sub(question.replace("@", name), answer.replace("@", name), text)
    return text


def virtualizes(check, folder, run, where):
    """`folder`: of the root, as this process sees it; `run(words)` runs a shell's line in it."""
    name = "".join(random.choices(string.ascii_lowercase, k=8)) + "x"
    factor = random.randrange(3, 1 << 30)
    for path, text in ((f"{name}.h", HEADER), (f"{name}.c", LIBRARY), ("program.c", PROGRAM)):
        (folder / path).write_text(text.replace("@", name).replace("FACTOR", str(factor)), encoding="utf-8")
    compiled = run(f"mkdir -p vendor && gcc -shared -fPIC -Wl,-soname,lib{name}.so.3 -o vendor/lib{name}.so.3 {name}.c && "
                   f"gcc -o program program.c vendor/lib{name}.so.3")
    native = run("LD_LIBRARY_PATH=vendor ./program")
    check(compiled.returncode == native.returncode == 0 and "result" in native.stdout, f"{where}: a library, {name}, is new", compiled.stderr)
    begun = run(f"aviary spec init --library vendor/lib{name}.so.3 -o {name}.lapis {name}.h")
    specification = folder / f"{name}.lapis"
    if not check(begun.returncode == 0 and specification.is_file(), f"{where}: aviary spec init", begun.stderr):
        return
    asked = specification.read_text(encoding="utf-8")
    specification.write_text(answered(asked, name), encoding="utf-8")
    checked = run(f"aviary spec check {name}.lapis")
    check(checked.returncode == 0, f"{where}: its questions are answered", f"{asked}\n{checked.stdout}{checked.stderr}")
    built = run(f"aviary spec build -o apis {name}.lapis")
    check(built.returncode == 0, f"{where}: aviary spec build, without a network and a source tree", built.stderr[-3000:])
    remote = run(f"LD_LIBRARY_PATH=vendor aviary run --api-dir apis --api {name} -- ./program")
    same = remote.returncode == 0 and remote.stdout == native.stdout
    check(same, f"{where}: aviary run: the program computes what it computes natively", f"{native.stdout}{remote.stdout}{remote.stderr}")
    others = f"apis/{name}/lib{name}.so.3" in remote.stderr and "/vendor/" in native.stderr
    check(others, f"{where}: with the guest library in the vendor's place", native.stderr + remote.stderr)
