/* Names of the variables of images: of text, of machine code, of fat binaries; and images of which nothing can be told. */
#include "../../server/image_variables.h"
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

/* Compares with the expected names, one behind the other with blanks; NULL: the image cannot be read. */
static void expect(const char *title, const void *image, size_t bytes, const char *expected)
{
    struct cuda_names found;
    char line[512] = "";
    int read = CUDA_READ == cuda_find_variables(image, bytes, (uint64_t)1 << 9, &found);

    for (size_t i = 0; i < found.count; i++) {
        strcat(line, i ? " " : "");
        strcat(line, found.names[i]);
    }
    if (read != (expected != NULL) || (read && strcmp(line, expected) != 0)) {
        printf("FAIL %s: %s \"%s\" instead of \"%s\"\n", title, read ? "read" : "not read", line, expected ? expected : "(not read)");
        failures++;
    }
    cuda_drop_names(&found);
}

static void expect_text(const char *title, const char *text, const char *expected)
{
    expect(title, text, strlen(text) + 1, expected);
}

#define HEAD ".version 8.0\n.target sm_90\n.address_size 64\n"

static void texts(void)
{
    expect_text("none", HEAD ".visible .entry f() { ld.global.u32 %r1, [a]; ret; }\n", "");
    expect_text("one of each", HEAD ".visible .global .align 4 .u32 counter = 7;\n.const .align 8 .b8 table[16];\n", "counter table");
    expect_text("values", HEAD ".global .u32 a[2] = {1, 2}, b = 3;\n.global .u64 c = generic(a);\n.visible .entry f() { }\n.global .u8 d;\n",
                "a b c d");
    expect_text("comments", "// .global .u32 no;\n" HEAD "/* .global .u32 no; */ .global /* .b8 */ .u32 yes; // .global .u32 no\n", "yes");
    expect_text("attributes", HEAD ".visible .global .attribute(.managed) .align 4 .u32 managed;\n.global .v4 .f32 vector;\n", "managed vector");
    expect_text("another image's", HEAD ".extern .global .u32 elsewhere;\n.global .u32 here;\n", "here");
    expect_text("shared memory and functions",
                HEAD ".shared .align 4 .b8 buffer[64];\n.func (.param .b32 r) g(.param .b32 x) { .reg .b32 %r1; ret; }\n.global .u32 last;\n", "last");
    expect_text("twice", HEAD ".visible .global .u32 once;\n.visible .global .u32 once;\n", "once");
    expect_text("kernels that allocate", HEAD ".extern .func (.param .b64 r) malloc (.param .b64 size);\n.global .u32 a;\n", NULL);
    expect_text("no text", "something else", NULL);
    expect("nothing", "", 0, NULL);
}

/* The smallest file with a variable, and with one more symbol that is none. */
struct machine_code {
    Elf64_Ehdr header;
    char section_names[32], symbol_names[32];
    Elf64_Sym symbols[3];
    Elf64_Shdr sections[5];
};

static struct machine_code machine_code(const char *undefined)
{
    struct machine_code code = {0};
    const char section_names[] = "\0.nv.global\0", symbol_names[] = "\0variable\0";

    memcpy(code.header.e_ident, ELFMAG, SELFMAG);
    code.header.e_ident[EI_CLASS] = ELFCLASS64;
    code.header.e_shoff = offsetof(struct machine_code, sections);
    code.header.e_shentsize = sizeof(Elf64_Shdr);
    code.header.e_shnum = 5;
    code.header.e_shstrndx = 1;
    memcpy(code.section_names, section_names, sizeof section_names);
    memcpy(code.symbol_names, symbol_names, sizeof symbol_names);
    strcpy(code.symbol_names + 16, undefined);
    code.sections[1] = (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = offsetof(struct machine_code, section_names), .sh_size = 32};
    code.sections[2] = (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = offsetof(struct machine_code, symbol_names), .sh_size = 32};
    code.sections[3] = (Elf64_Shdr){.sh_type = SHT_SYMTAB, .sh_link = 2, .sh_offset = offsetof(struct machine_code, symbols),
                                    .sh_size = sizeof code.symbols};
    code.sections[4] = (Elf64_Shdr){.sh_type = SHT_NOBITS, .sh_name = 1, .sh_size = 64};
    code.symbols[1] = (Elf64_Sym){.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), .st_shndx = 4, .st_size = 8};
    code.symbols[2] = (Elf64_Sym){.st_name = 16, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_NOTYPE)};
    return code;
}

static void codes(void)
{
    struct machine_code code = machine_code("other");

    expect("machine code", &code, sizeof code, "variable");
    code = machine_code("malloc");
    expect("machine code that allocates", &code, sizeof code, NULL);
    code = machine_code("other");
    code.header.e_shnum = 5000;
    expect("sections outside of the file", &code, sizeof code, NULL);
    code = machine_code("other");
    code.sections[3].sh_size = (uint64_t)1 << 40;
    expect("symbols outside of the file", &code, sizeof code, NULL);
    code = machine_code("other");
    code.symbols[1].st_name = 0xffffffff;
    expect("a name outside of its table", &code, sizeof code, NULL);
}

/* A fat binary with one text, as it is or packed. */
struct fat {
    uint32_t magic;
    uint16_t version, header;
    uint64_t bytes;
    uint16_t kind, entry_version;
    uint32_t entry_header;
    uint64_t entry_bytes;
    uint32_t packed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture, name, name_length;
    uint64_t flags, unused, unpacked_bytes;
    char content[256];
};

static struct fat fat(const char *content, size_t bytes, size_t unpacked_bytes, uint64_t flags)
{
    struct fat made = {
        .magic = 0xba55ed50, .version = 1, .header = offsetof(struct fat, kind), .bytes = sizeof made - offsetof(struct fat, kind),
        .kind = 1, .entry_version = 1, .entry_header = offsetof(struct fat, content) - offsetof(struct fat, kind),
        .entry_bytes = sizeof made.content, .packed_bytes = (uint32_t)bytes, .architecture = 90, .flags = flags,
        .unpacked_bytes = unpacked_bytes,
    };

    memcpy(made.content, content, bytes);
    return made;
}

static void fat_binaries(void)
{
    const char text[] = HEAD ".visible .global .u32 packed;\n";
    char content[256];
    struct fat made = fat(text, sizeof text, 0, 0);
    void *library = dlopen("libzstd.so.1", RTLD_NOW);
    size_t (*compress)(void *, size_t, const void *, size_t, int) = NULL;

    expect("a fat binary", &made, sizeof made, "packed");
    made = fat(text, sizeof text, sizeof text, 0x1000);
    expect("packed in a way that is not known", &made, sizeof made, NULL);
    if (library)
        *(void **)&compress = dlsym(library, "ZSTD_compress");
    if (!compress) {
        printf("FAIL: libzstd.so.1 is needed\n");
        failures++;
        return;
    }
    size_t bytes = compress(content, sizeof content, text, sizeof text, 3);
    made = fat(content, bytes, sizeof text, 0x8000);
    expect("Zstandard", &made, sizeof made, "packed");
    made.unpacked_bytes--;
    expect("Zstandard, one byte less", &made, sizeof made, NULL);
    made.unpacked_bytes += 2;
    expect("Zstandard, one byte more", &made, sizeof made, NULL);
    made.packed_bytes /= 2;
    expect("Zstandard, cut", &made, sizeof made, NULL);
    made.packed_bytes = UINT32_MAX;
    expect("Zstandard, longer than its entry", &made, sizeof made, NULL);
}

/* Every change of one byte is read or refused; the sanitizers and the guard of malloc see what else is touched. */
static void changes(void)
{
    struct machine_code code = machine_code("other");

    for (size_t at = 0; at < sizeof code; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            unsigned char *copy = malloc(sizeof code);
            struct cuda_names found;
            if (!copy)
                exit(1);
            memcpy(copy, &code, sizeof code);
            copy[at] ^= (unsigned char)(1u << bit);
            cuda_find_variables(copy, sizeof code, UINT64_MAX, &found);
            cuda_drop_names(&found);
            free(copy);
        }
}

int main(void)
{
    texts();
    codes();
    fat_binaries();
    changes();
    printf(failures ? "%d failures\n" : "ok image_variables\n", failures);
    return failures != 0;
}
