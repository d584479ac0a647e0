/* The image that a module is loaded from: PTX text, machine code, or a fat binary with some of both in it. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../lz4.h"
#include "cubin.h"
#include "module.h"

struct wrapper {
    uint32_t magic, version;
    const void *data;
    void *more;
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};

struct fat_entry {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, options;
    uint16_t minor, major;
    uint32_t architecture, name_offset, name_length;
    uint64_t flags, unused, text_size;
};

enum {
    WRAPPER_MAGIC = 0x466243B1,
    FAT_MAGIC = (int)0xBA55ED50,
    KIND_PTX = 1,
    KIND_MACHINE = 2,
    COMPRESSED = 0x2000,
    COMPRESSED_OTHERWISE = 0x1000,
    COMPRESSED_ZSTD = 0x8000,
    ARCHITECTURE_ONLY = 0x100000, /* for this architecture and no later one, with what only it has */
};

bool machine_code_skipped;

__attribute__((constructor)) static void read_environment(void)
{
    const char *wanted = getenv("REFCUDA_MACHINE_CODE");

    machine_code_skipped = wanted && strcmp(wanted, "skip") == 0;
    if (wanted && *wanted && !machine_code_skipped)
        fprintf(stderr, "refdriver: REFCUDA_MACHINE_CODE can be \"skip\", not \"%s\"\n", wanted);
}

/* Zstandard, by the system's library, without which such code cannot be loaded. */
static bool decompress_zstd(const void *from, size_t from_size, void *to, size_t to_size)
{
    static size_t (*decompressor)(void *to, size_t room, const void *from, size_t size);

    if (!decompressor) {
        void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library)
            *(void **)&decompressor = dlsym(library, "ZSTD_decompress");
    }
    if (decompressor)
        return decompressor(to, to_size, from, from_size) == to_size;
    fprintf(stderr, "refdriver: code is compressed with Zstandard: libzstd.so.1 is needed\n");
    return false;
}

/* The content of an entry, with a zero behind it. */
static CUresult entry_code(const struct fat_entry *entry, struct code_image *code)
{
    const char *bytes = (const char *)entry + entry->header_size;
    bool zstd = entry->flags & COMPRESSED_ZSTD, compressed = zstd || entry->flags & COMPRESSED;
    size_t size = compressed ? entry->text_size : entry->size;
    bool good;

    if (entry->flags & COMPRESSED_OTHERWISE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (size > (size_t)1 << 30 || entry->compressed_size > entry->size)
        return CUDA_ERROR_INVALID_IMAGE;
    *code = (struct code_image){.bytes = malloc(size + 1), .size = size, .machine = entry->kind == KIND_MACHINE};
    if (!code->bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    code->bytes[size] = 0;
    if (zstd)
        good = decompress_zstd(bytes, entry->compressed_size, code->bytes, size);
    else if (compressed)
        good = cuda_unpack_lz4((const uint8_t *)bytes, entry->compressed_size, code->bytes, size);
    else
        good = memcpy(code->bytes, bytes, size);
    if (good)
        return CUDA_SUCCESS;
    free(code->bytes);
    return CUDA_ERROR_INVALID_IMAGE;
}

/* How well an entry suits these devices, 0 for not at all. A driver takes machine code before text. */
static unsigned suits(const struct fat_entry *entry)
{
    enum { OURS = 90, FAMILY = 10 };

    if (entry->kind == KIND_PTX)
        return 1;
    if (!machine_code_skipped || entry->kind != KIND_MACHINE || entry->architecture / FAMILY != OURS / FAMILY || entry->architecture > OURS)
        return 0;
    return 2 + 2 * (entry->architecture % FAMILY) + !!(entry->flags & ARCHITECTURE_ONLY);
}

static CUresult fat_code(const char *fat, struct code_image *code)
{
    const struct fat_header *header = (const struct fat_header *)fat;
    uint64_t offset = header->header_size, end = offset + header->size;
    const struct fat_entry *best = NULL;

    if (header->header_size < sizeof(*header) || header->size > (uint64_t)1 << 32)
        return CUDA_ERROR_INVALID_IMAGE;
    while (end - offset >= sizeof(struct fat_entry)) {
        const struct fat_entry *entry = (const struct fat_entry *)(fat + offset);
        if (entry->header_size < sizeof(*entry) || entry->header_size > end - offset ||
            entry->size > end - offset - entry->header_size)
            return CUDA_ERROR_INVALID_IMAGE;
        if (suits(entry) > (best ? suits(best) : 0))
            best = entry;
        offset += entry->header_size + entry->size;
    }
    return best ? entry_code(best, code) : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

static CUresult copy_code(const void *bytes, size_t size, bool machine, struct code_image *code)
{
    *code = (struct code_image){.bytes = malloc(size + 1), .size = size, .machine = machine};
    if (!code->bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(code->bytes, bytes, size);
    code->bytes[size] = 0;
    return CUDA_SUCCESS;
}

static bool is_text(const char *image)
{
    for (;;) {
        image += strspn(image, " \t\r\n");
        if (strncmp(image, "//", 2) != 0)
            return strncmp(image, ".version", 8) == 0;
        image += strcspn(image, "\n");
    }
}

CUresult image_open(const void *image, struct code_image *code)
{
    uint32_t magic;

    memcpy(&magic, image, sizeof(magic));
    if (magic == WRAPPER_MAGIC) {
        image = ((const struct wrapper *)image)->data;
        memcpy(&magic, image, sizeof(magic));
        if (magic != (uint32_t)FAT_MAGIC)
            return CUDA_ERROR_INVALID_IMAGE;
    }
    if (magic == (uint32_t)FAT_MAGIC)
        return fat_code(image, code);
    if (memcmp(image, "\177ELF", 4) == 0) {
        size_t size = machine_code_skipped ? cubin_size(image) : 0;
        return size ? copy_code(image, size, true, code) : CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return is_text(image) ? copy_code(image, strlen(image), false, code) : CUDA_ERROR_INVALID_IMAGE;
}

struct ptx_program *image_program(const struct code_image *code, ptx_allocate allocate, void *environment, char message[200])
{
    if (code->machine)
        return cubin_parse(code->bytes, code->size, allocate, environment, message);
    return ptx_parse(code->bytes, allocate, environment, message);
}

void *allocate_nothing(void *environment, size_t size, bool managed, CUdeviceptr *address)
{
    static char scratch[1 << 16];

    (void)environment, (void)managed;
    *address = 0;
    return size <= sizeof(scratch) ? scratch : NULL;
}

CUresult image_read(const char *path, char **bytes)
{
    FILE *file = fopen(path, "rb");
    long size;
    bool good;

    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    good = fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0;
    /* A header at the very end must not be read beyond it. */
    *bytes = good ? calloc(1, (size_t)size + 128) : NULL;
    good = *bytes && fread(*bytes, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (good)
        return CUDA_SUCCESS;
    free(*bytes);
    return CUDA_ERROR_INVALID_IMAGE;
}
