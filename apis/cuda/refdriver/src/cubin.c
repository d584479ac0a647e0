#include "cubin.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a symbol: a kernel, and not a function that kernels call. */
enum { STO_CUDA_ENTRY = 0x10 };

/* Entries of `.nv.info` (of the file) and `.nv.info.KERNEL`: a format and a number, then a value or its size. */
enum {
    FORMAT_SIZED = 4,
    INFO_MAX_THREADS = 0x05,
    INFO_FRAME_SIZE = 0x11,
    INFO_PARAMETER = 0x17,
    INFO_PARAMETER_BYTES = 0x19,
    INFO_REGISTERS = 0x2f,
};
struct info {
    uint8_t format, number;
    uint16_t size;
};
struct parameter_info {
    uint32_t index;
    uint16_t ordinal, offset;
    uint32_t layout; /* the size above SIZE_SHIFT */
};
enum { SIZE_SHIFT = 18, MOST_PARAMETERS = 4096, MOST_THREADS = 1024, REGISTERS = 65536 };

struct cubin {
    const char *file;
    size_t size;
    const Elf64_Shdr *sections;
    size_t section_count;
    const char *section_names, *symbol_names;
    size_t section_names_size, symbol_names_size;
    const Elf64_Sym *symbols;
    size_t symbol_count;
};

size_t cubin_size(const void *image)
{
    const Elf64_Ehdr *header = image;
    const Elf64_Shdr *sections = (const void *)((const char *)image + header->e_shoff);
    size_t end = header->e_shoff + (size_t)header->e_shnum * sizeof(*sections);
    size_t segments = header->e_phoff + (size_t)header->e_phnum * sizeof(Elf64_Phdr);

    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(*sections))
        return 0;
    if (segments > end)
        end = segments;
    for (size_t i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > end)
            end = sections[i].sh_offset + sections[i].sh_size;
    return end;
}

/* The bytes of a section, or NULL where it has none or they are not all in the file. */
static const char *bytes_of(const struct cubin *cubin, const Elf64_Shdr *section)
{
    if (section->sh_type == SHT_NOBITS || section->sh_offset > cubin->size || section->sh_size > cubin->size - section->sh_offset)
        return NULL;
    return cubin->file + section->sh_offset;
}

/* A name out of a table of names, which must end in there. */
static const char *name_at(const char *names, size_t size, size_t offset)
{
    return offset < size && memchr(names + offset, 0, size - offset) ? names + offset : "";
}

static const char *section_name(const struct cubin *cubin, const Elf64_Shdr *section)
{
    return name_at(cubin->section_names, cubin->section_names_size, section->sh_name);
}

static const char *symbol_name(const struct cubin *cubin, const Elf64_Sym *symbol)
{
    return name_at(cubin->symbol_names, cubin->symbol_names_size, symbol->st_name);
}

static bool open_file(struct cubin *cubin)
{
    const Elf64_Ehdr *header = (const void *)cubin->file;
    const Elf64_Shdr *names;

    if (cubin->size < sizeof(*header) || header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shoff > cubin->size ||
        header->e_shnum > (cubin->size - header->e_shoff) / sizeof(Elf64_Shdr) || header->e_shstrndx >= header->e_shnum)
        return false;
    cubin->sections = (const void *)(cubin->file + header->e_shoff);
    cubin->section_count = header->e_shnum;
    names = &cubin->sections[header->e_shstrndx];
    cubin->section_names = bytes_of(cubin, names);
    cubin->section_names_size = names->sh_size;
    for (size_t i = 0; i < cubin->section_count; i++) {
        const Elf64_Shdr *section = &cubin->sections[i];
        if (section->sh_type != SHT_SYMTAB || section->sh_link >= cubin->section_count)
            continue;
        cubin->symbols = (const void *)bytes_of(cubin, section);
        cubin->symbol_count = section->sh_size / sizeof(Elf64_Sym);
        cubin->symbol_names = bytes_of(cubin, &cubin->sections[section->sh_link]);
        cubin->symbol_names_size = cubin->sections[section->sh_link].sh_size;
    }
    return cubin->section_names && cubin->symbols && cubin->symbol_names;
}

/* --- kernels --- */

static bool set_parameter(struct ptx_code *code, const struct parameter_info *info)
{
    size_t wanted = (size_t)info->ordinal + 1;

    if (wanted > MOST_PARAMETERS)
        return false;
    if (wanted > code->parameter_count) {
        struct ptx_parameter *grown = realloc(code->parameters, wanted * sizeof(*grown));
        if (!grown)
            return false;
        memset(grown + code->parameter_count, 0, (wanted - code->parameter_count) * sizeof(*grown));
        code->parameters = grown;
        code->parameter_count = wanted;
    }
    code->parameters[info->ordinal] = (struct ptx_parameter){info->offset, info->layout >> SIZE_SHIFT};
    return true;
}

/* The code that a symbol's index names; `codes` is by symbol. */
static struct ptx_code *code_of(struct ptx_code *const *codes, size_t count, uint32_t symbol)
{
    return symbol < count ? codes[symbol] : NULL;
}

static bool apply(const struct cubin *cubin, struct ptx_code *const *codes, struct ptx_code *kernel, struct info info,
                  const char *value)
{
    uint32_t words[3] = {0};
    struct parameter_info parameter;
    struct ptx_code *code;

    memcpy(words, value, info.size < sizeof(words) ? info.size : sizeof(words));
    switch (info.number) {
    case INFO_REGISTERS:
        code = code_of(codes, cubin->symbol_count, words[0]);
        if (code)
            code->register_count = (int)(words[1] & 0xffff);
        return true;
    case INFO_FRAME_SIZE:
        code = code_of(codes, cubin->symbol_count, words[0]);
        if (code)
            code->local_bytes = words[1];
        return true;
    case INFO_MAX_THREADS:
        if (kernel && words[0] <= MOST_THREADS && words[1] <= MOST_THREADS && words[2] <= 64)
            kernel->maximum_threads = (int)(words[0] * words[1] * words[2]);
        return true;
    case INFO_PARAMETER:
        memcpy(&parameter, words, sizeof(parameter));
        return !kernel || set_parameter(kernel, &parameter);
    default:
        return true;
    }
}

static bool read_information(const struct cubin *cubin, struct ptx_code *const *codes, struct ptx_code *kernel,
                             const char *from, size_t size)
{
    const char *end = from + size;

    while ((size_t)(end - from) >= sizeof(struct info)) {
        struct info info;

        memcpy(&info, from, sizeof(info));
        from += sizeof(info);
        if (info.format != FORMAT_SIZED) {
            /* The size is the value. */
            if (kernel && info.number == INFO_PARAMETER_BYTES)
                kernel->parameter_bytes = info.size;
            continue;
        }
        if (info.size > (size_t)(end - from) || !apply(cubin, codes, kernel, info, from))
            return false;
        from += info.size;
    }
    return true;
}

static struct ptx_code *new_code(const char *name)
{
    struct ptx_code *code = calloc(1, sizeof(*code));

    if (!code)
        return NULL;
    code->name = strdup(name);
    code->unsupported = strdup("machine code");
    code->maximum_threads = MOST_THREADS;
    if (code->name && code->unsupported)
        return code;
    free(code->name);
    free(code->unsupported);
    free(code);
    return NULL;
}

static bool add_kernels(const struct cubin *cubin, struct ptx_program *program, struct ptx_code **codes)
{
    program->codes = calloc(cubin->symbol_count + 1, sizeof(*program->codes));
    for (size_t i = 0; program->codes && i < cubin->symbol_count; i++) {
        const Elf64_Sym *symbol = &cubin->symbols[i];
        if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || !(symbol->st_other & STO_CUDA_ENTRY) || !symbol->st_shndx)
            continue;
        codes[i] = new_code(symbol_name(cubin, symbol));
        if (!codes[i])
            return false;
        program->codes[program->code_count++] = codes[i];
    }
    return program->codes != NULL;
}

/* The kernel whose code is in this section. */
static struct ptx_code *kernel_in(const struct cubin *cubin, struct ptx_code *const *codes, size_t section)
{
    for (size_t i = 0; i < cubin->symbol_count; i++)
        if (codes[i] && cubin->symbols[i].st_shndx == section)
            return codes[i];
    return NULL;
}

static void limit_threads(struct ptx_code *code)
{
    enum { EACH = 8, WARP = 32 };
    int registers = (code->register_count + EACH - 1) / EACH * EACH;

    if (registers && code->maximum_threads > REGISTERS / registers)
        code->maximum_threads = REGISTERS / registers / WARP * WARP;
}

static bool describe_kernels(const struct cubin *cubin, struct ptx_program *program, struct ptx_code *const *codes)
{
    static const char info[] = ".nv.info", shared[] = ".nv.shared.";

    for (size_t i = 0; i < cubin->section_count; i++) {
        const Elf64_Shdr *section = &cubin->sections[i];
        const char *name = section_name(cubin, section), *bytes = bytes_of(cubin, section);
        struct ptx_code *kernel = section->sh_info ? kernel_in(cubin, codes, section->sh_info) : NULL;

        if (strncmp(name, shared, sizeof(shared) - 1) == 0 && kernel)
            kernel->shared_bytes = section->sh_size;
        else if (strncmp(name, info, sizeof(info) - 1) == 0 && bytes &&
                 !read_information(cubin, codes, kernel, bytes, section->sh_size))
            return false;
    }
    for (size_t i = 0; i < program->code_count; i++) {
        struct ptx_code *code = program->codes[i];
        for (size_t j = 0; j < code->parameter_count; j++) {
            size_t end = code->parameters[j].offset + code->parameters[j].size;
            if (end > code->parameter_bytes)
                code->parameter_bytes = end;
        }
        limit_threads(code);
    }
    return true;
}

/* --- variables --- */

static bool holds_variables(const char *name) { return strncmp(name, ".nv.global", 10) == 0 || strcmp(name, ".nv.constant3") == 0; }

static bool add_variables(const struct cubin *cubin, struct ptx_program *program, ptx_allocate allocate, void *environment)
{
    program->globals = calloc(cubin->symbol_count + 1, sizeof(*program->globals));
    for (size_t i = 0; program->globals && i < cubin->symbol_count; i++) {
        const Elf64_Sym *symbol = &cubin->symbols[i];
        const Elf64_Shdr *section = symbol->st_shndx < cubin->section_count ? &cubin->sections[symbol->st_shndx] : NULL;
        struct ptx_global *variable = &program->globals[program->global_count];
        const char *content;
        void *bytes;

        if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || !section || !symbol->st_size || !holds_variables(section_name(cubin, section)))
            continue;
        if (symbol->st_value > section->sh_size || symbol->st_size > section->sh_size - symbol->st_value)
            return false;
        bytes = allocate(environment, symbol->st_size, false, &variable->address);
        if (!bytes)
            return false;
        variable->size = symbol->st_size;
        program->global_count++;
        variable->name = strdup(symbol_name(cubin, symbol));
        if (!variable->name)
            return false;
        content = bytes_of(cubin, section);
        if (content)
            memcpy(bytes, content + symbol->st_value, symbol->st_size);
    }
    return program->globals != NULL;
}

struct ptx_program *cubin_parse(const char *file, size_t size, ptx_allocate allocate, void *environment, char message[200])
{
    struct cubin cubin = {.file = file, .size = size};
    struct ptx_program *program = calloc(1, sizeof(*program));
    struct ptx_code **codes;
    bool good;

    message[0] = 0;
    if (!program)
        return NULL;
    if (!open_file(&cubin)) {
        snprintf(message, 200, "machine code without sections or symbols");
        ptx_free(program);
        return NULL;
    }
    codes = calloc(cubin.symbol_count + 1, sizeof(*codes));
    good = codes && add_kernels(&cubin, program, codes) && describe_kernels(&cubin, program, codes) &&
           (!allocate || add_variables(&cubin, program, allocate, environment));
    free(codes);
    if (good)
        return program;
    snprintf(message, 200, "machine code that contradicts itself, or is too large");
    ptx_free(program);
    return NULL;
}
