/* The variables of device code, by name: those of PTX text, of machine code (ELF), and of a fat binary with such in it. The driver
 * answers where a variable of a name is, and has no list of them. An image is the guest's: nothing in it is believed. */
#include "image_variables.h"
#include "lz4.h"
#include <ctype.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VARIABLES = 65536, MOST_NAME = 4096 };
/* The most that an entry of a fat binary is unpacked to. */
#define MOST_UNPACKED ((uint64_t)1 << 30)

void cuda_drop_names(struct cuda_names *names) {
    for (size_t i = 0; i < names->count; i++)
        free(names->names[i]);
    free(names->names);
    *names = (struct cuda_names){0};
}

static int add_name(struct cuda_names *found, const char *name, size_t length) {
    if (!length || length > MOST_NAME || found->count == MOST_VARIABLES)
        return 0;
    if ((found->count & (found->count - 1)) == 0) {
        char **larger = realloc(found->names, (found->count ? 2 * found->count : 1) * sizeof *larger);
        if (!larger)
            return 0;
        found->names = larger;
    }
    char *copy = strndup(name, length);
    if (copy)
        found->names[found->count++] = copy;
    return copy != NULL;
}

static int is(const char *token, size_t length, const char *word) {
    return length == strlen(word) && memcmp(token, word, length) == 0;
}

static int compare(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* In order, so that the same image has the same list in every process. */
static void keep_each_once(struct cuda_names *found) {
    size_t kept = 0;
    if (found->count)
        qsort(found->names, found->count, sizeof *found->names, compare);
    for (size_t i = 0; i < found->count; i++)
        if (kept && strcmp(found->names[kept - 1], found->names[i]) == 0)
            free(found->names[i]);
        else
            found->names[kept++] = found->names[i];
    found->count = kept;
}

/* ---- PTX ---------------------------------------------------------------------------------------- */

struct text {
    const char *at, *end;
};

/* The next word or sign, without comments; `length` 0: the text is over. */
static const char *next_token(struct text *text, size_t *length) {
    for (;;) {
        while (text->at < text->end && isspace((unsigned char)*text->at))
            text->at++;
        size_t left = (size_t)(text->end - text->at);
        if (left >= 2 && text->at[0] == '/' && text->at[1] == '/') {
            const char *line = memchr(text->at, '\n', left);
            text->at = line ? line : text->end;
        } else if (left >= 2 && text->at[0] == '/' && text->at[1] == '*') {
            const char *close = memmem(text->at + 2, left - 2, "*/", 2);
            text->at = close ? close + 2 : text->end;
        } else {
            break;
        }
    }
    const char *token = text->at;
    if (token < text->end && *token == '"') {
        const char *close = memchr(token + 1, '"', (size_t)(text->end - token - 1));
        text->at = close ? close + 1 : text->end;
    } else if (token < text->end) {
        text->at++;
        if (isalnum((unsigned char)*token) || strchr("._$%", *token))
            while (text->at < text->end && (isalnum((unsigned char)*text->at) || strchr("_$%", *text->at)))
                text->at++;
    }
    *length = (size_t)(text->at - token);
    return token;
}

static int is_name(const char *token) {
    return isalpha((unsigned char)*token) || strchr("_$%", *token);
}

/* Memory that kernels allocate lies in no variable, and nothing tells of it. */
static int allocates(const char *name, size_t length) {
    return is(name, length, "malloc");
}

/* Statements outside of functions: of a variable's the names, one or several. `extern`: another image has it, or the driver. */
static enum cuda_reading read_text(const char *bytes, size_t count, struct cuda_names *found) {
    struct text text = {bytes, bytes + count};
    size_t depth = 0, brackets = 0, length;
    int declares = 0, is_elsewhere = 0, named = 0, has_value = 0;
    for (const char *token = next_token(&text, &length); length; token = next_token(&text, &length)) {
        if (*token == '{' || *token == '}') {
            depth += *token == '{' ? 1 : depth ? -1 : 0;
            /* A function's body ends its statement, a value does not. */
            if (!depth && *token == '}' && !has_value)
                declares = is_elsewhere = named = 0;
            continue;
        }
        if (depth)
            continue;
        if (is_elsewhere && allocates(token, length))
            return CUDA_ALLOCATES;
        if (*token == '(' || *token == '[')
            brackets++;
        else if ((*token == ')' || *token == ']') && brackets)
            brackets--;
        else if (brackets)
            continue;
        else if (*token == ';')
            declares = is_elsewhere = named = has_value = 0;
        else if (*token == ',')
            named = has_value = 0;
        else if (*token == '=')
            has_value = 1;
        else if (is(token, length, ".global") || is(token, length, ".const"))
            declares = 1;
        else if (is(token, length, ".extern"))
            is_elsewhere = 1;
        else if (is(token, length, ".func") || is(token, length, ".entry") || is(token, length, ".version")
                 || is(token, length, ".target") || is(token, length, ".file") || is(token, length, ".section"))
            declares = 0;
        else if (declares && !is_elsewhere && !named && !has_value && is_name(token)) {
            named = 1;
            if (!add_name(found, token, length))
                return CUDA_UNREADABLE;
        }
    }
    return CUDA_READ;
}

static int is_text(const char *bytes, size_t count) {
    struct text text = {bytes, bytes + count};
    size_t length;
    const char *token = next_token(&text, &length);
    return is(token, length, ".version");
}

/* ---- Machine code ------------------------------------------------------------------------------- */

/* The string at an offset of a table; NULL: it does not end there. */
static const char *string_at(const char *table, uint64_t bytes, uint64_t offset) {
    return offset < bytes && memchr(table + offset, 0, bytes - offset) ? table + offset : NULL;
}

/* Copies a section's header; 0: there is none, or its content does not lie in the file. */
static int section_at(const char *file, size_t bytes, const Elf64_Ehdr *header, size_t number, Elf64_Shdr *section) {
    if (number >= header->e_shnum)
        return 0;
    memcpy(section, file + header->e_shoff + number * sizeof *section, sizeof *section);
    return section->sh_type == SHT_NOBITS || (section->sh_offset <= bytes && section->sh_size <= bytes - section->sh_offset);
}

static int holds_variables(const char *section) {
    return section && (strncmp(section, ".nv.global", 10) == 0 || strcmp(section, ".nv.constant3") == 0);
}

static enum cuda_reading read_machine_code(const char *file, size_t bytes, struct cuda_names *found) {
    Elf64_Ehdr header;
    Elf64_Shdr section, strings, names, place;
    memcpy(&header, file, sizeof header);
    if (header.e_shentsize != sizeof section || header.e_shoff > bytes || header.e_shnum > (bytes - header.e_shoff) / sizeof section
        || !section_at(file, bytes, &header, header.e_shstrndx, &names) || names.sh_type == SHT_NOBITS)
        return CUDA_UNREADABLE;
    for (size_t i = 0; i < header.e_shnum; i++) {
        if (!section_at(file, bytes, &header, i, &section))
            return CUDA_UNREADABLE;
        if (section.sh_type != SHT_SYMTAB)
            continue;
        if (!section_at(file, bytes, &header, section.sh_link, &strings) || strings.sh_type == SHT_NOBITS)
            return CUDA_UNREADABLE;
        for (uint64_t at = 0; section.sh_size - at >= sizeof(Elf64_Sym); at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, file + section.sh_offset + at, sizeof symbol);
            const char *name = string_at(file + strings.sh_offset, strings.sh_size, symbol.st_name);
            if (name && symbol.st_shndx == SHN_UNDEF && allocates(name, strlen(name)))
                return CUDA_ALLOCATES;
            if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || !symbol.st_size || !section_at(file, bytes, &header, symbol.st_shndx, &place)
                || !holds_variables(string_at(file + names.sh_offset, names.sh_size, place.sh_name)))
                continue;
            if (!name || !add_name(found, name, strlen(name)))
                return CUDA_UNREADABLE;
        }
    }
    return CUDA_READ;
}

static enum cuda_reading read_code(const char *code, size_t bytes, struct cuda_names *found) {
    if (bytes > sizeof(Elf64_Ehdr) && memcmp(code, ELFMAG, SELFMAG) == 0)
        return code[EI_CLASS] == ELFCLASS64 ? read_machine_code(code, bytes, found) : CUDA_UNREADABLE;
    return is_text(code, bytes) ? read_text(code, bytes, found) : CUDA_UNREADABLE;
}

/* ---- Fat binaries ------------------------------------------------------------------------------- */

struct fat_header {
    uint32_t magic;
    uint16_t version, header;
    uint64_t bytes;
};
struct fat_entry {
    uint16_t kind, version;
    uint32_t header;
    uint64_t bytes;
    uint32_t packed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture, name, name_length;
    uint64_t flags, unused, unpacked_bytes;
};
enum { FAT_MAGIC = (int)0xba55ed50, IS_TEXT = 1, IS_MACHINE_CODE = 2, IS_LZ4 = 0x2000, IS_ZSTD = 0x8000, IS_PACKED_OTHERWISE = 0x1000 };

/* By the system's library; 0: there is none, or the bytes are not what they say. */
static int unpack_zstd(const char *from, size_t bytes, char *to, size_t unpacked_bytes) {
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    size_t (*decompress)(void *, size_t, const void *, size_t) = NULL;
    if (library)
        *(void **)&decompress = dlsym(library, "ZSTD_decompress");
    int unpacked = decompress && decompress(to, unpacked_bytes, from, bytes) == unpacked_bytes;
    if (library)
        dlclose(library);
    return unpacked;
}

static enum cuda_reading read_entry(const struct fat_entry *entry, const char *content, struct cuda_names *found) {
    if ((entry->kind != IS_TEXT && entry->kind != IS_MACHINE_CODE) || entry->flags & IS_PACKED_OTHERWISE)
        return CUDA_UNREADABLE;
    if (!(entry->flags & (IS_LZ4 | IS_ZSTD)))
        return read_code(content, entry->bytes, found);
    if (entry->packed_bytes > entry->bytes || entry->unpacked_bytes > MOST_UNPACKED)
        return CUDA_UNREADABLE;
    char *code = malloc(entry->unpacked_bytes + 1);
    int unpacked = code && (entry->flags & IS_ZSTD ? unpack_zstd(content, entry->packed_bytes, code, entry->unpacked_bytes)
                                                   : cuda_unpack_lz4((const uint8_t *)content, entry->packed_bytes, code, entry->unpacked_bytes));
    enum cuda_reading reading = unpacked ? read_code(code, entry->unpacked_bytes, found) : CUDA_UNREADABLE;
    free(code);
    return reading;
}

/* True if the driver may take that entry: machine code is for the devices of one generation, text for all. */
static int may_run(const struct fat_entry *entry, uint64_t generations) {
    enum { OF_GENERATION = 10 };
    uint32_t generation = entry->architecture / OF_GENERATION;
    return entry->kind != IS_MACHINE_CODE || (generation < 64 && generations >> generation & 1);
}

static enum cuda_reading read_fat(const char *image, size_t bytes, uint64_t generations, struct cuda_names *found) {
    struct fat_header header;
    struct fat_entry entry;
    memcpy(&header, image, sizeof header);
    if (header.header < sizeof header || header.header > bytes || header.bytes > bytes - header.header)
        return CUDA_UNREADABLE;
    uint64_t end = header.header + header.bytes;
    for (uint64_t at = header.header; end - at >= sizeof entry;) {
        memcpy(&entry, image + at, sizeof entry);
        if (entry.header < sizeof entry || entry.header > end - at || entry.bytes > end - at - entry.header)
            return CUDA_UNREADABLE;
        enum cuda_reading reading = may_run(&entry, generations) ? read_entry(&entry, image + at + entry.header, found) : CUDA_READ;
        if (reading != CUDA_READ)
            return reading;
        at += entry.header + entry.bytes;
    }
    return CUDA_READ;
}

enum cuda_reading cuda_find_variables(const void *image, size_t bytes, uint64_t generations, struct cuda_names *found) {
    uint32_t magic = 0;
    *found = (struct cuda_names){0};
    if (bytes > sizeof magic)
        memcpy(&magic, image, sizeof magic);
    int is_fat = magic == (uint32_t)FAT_MAGIC && bytes >= sizeof(struct fat_header);
    enum cuda_reading reading = is_fat ? read_fat(image, bytes, generations, found) : read_code(image, bytes, found);
    if (reading == CUDA_READ)
        keep_each_once(found);
    else
        cuda_drop_names(found);
    return reading;
}
