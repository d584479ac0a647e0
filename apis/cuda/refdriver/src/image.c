/* What a module is loaded from: PTX text, or a fat binary with PTX in it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    COMPRESSED = 0x2000,
    COMPRESSED_OTHERWISE = 0x9000,
};

/* LZ4: literals, then a match some bytes back, until the input ends. */
static bool decompress(const uint8_t *from, size_t from_size, char *to, size_t to_size)
{
    const uint8_t *end = from + from_size;
    size_t written = 0;

    while (from < end) {
        unsigned token = *from++, more;
        size_t literals = token >> 4, match = (token & 15) + 4, back;

        if (literals == 15)
            do {
                if (from == end)
                    return false;
                literals += more = *from++;
            } while (more == 255);
        if (literals > (size_t)(end - from) || literals > to_size - written)
            return false;
        memcpy(to + written, from, literals);
        from += literals;
        written += literals;
        if (from == end)
            break;
        if (end - from < 2)
            return false;
        back = from[0] | (size_t)from[1] << 8;
        from += 2;
        if (match == 19)
            do {
                if (from == end)
                    return false;
                match += more = *from++;
            } while (more == 255);
        if (!back || back > written || match > to_size - written)
            return false;
        for (; match; match--, written++)
            to[written] = to[written - back];
    }
    return written == to_size;
}

static CUresult entry_text(const struct fat_entry *entry, char **text)
{
    const char *bytes = (const char *)entry + entry->header_size;
    size_t size = entry->flags & COMPRESSED ? entry->text_size : entry->size;

    if (entry->flags & COMPRESSED_OTHERWISE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (size > (size_t)1 << 30 || entry->compressed_size > entry->size)
        return CUDA_ERROR_INVALID_IMAGE;
    *text = malloc(size + 1);
    if (!*text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*text)[size] = 0;
    if (!(entry->flags & COMPRESSED)) {
        memcpy(*text, bytes, size);
        return CUDA_SUCCESS;
    }
    if (decompress((const uint8_t *)bytes, entry->compressed_size, *text, size))
        return CUDA_SUCCESS;
    free(*text);
    return CUDA_ERROR_INVALID_IMAGE;
}

static CUresult fat_text(const char *fat, char **text)
{
    const struct fat_header *header = (const struct fat_header *)fat;
    uint64_t offset = header->header_size, end = offset + header->size;

    if (header->header_size < sizeof(*header) || header->size > (uint64_t)1 << 32)
        return CUDA_ERROR_INVALID_IMAGE;
    while (end - offset >= sizeof(struct fat_entry)) {
        const struct fat_entry *entry = (const struct fat_entry *)(fat + offset);
        if (entry->header_size < sizeof(*entry) || entry->header_size > end - offset ||
            entry->size > end - offset - entry->header_size)
            return CUDA_ERROR_INVALID_IMAGE;
        if (entry->kind == KIND_PTX)
            return entry_text(entry, text);
        offset += entry->header_size + entry->size;
    }
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
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

CUresult image_text(const void *image, char **text)
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
        return fat_text(image, text);
    if (memcmp(image, "\177ELF", 4) == 0)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!is_text(image))
        return CUDA_ERROR_INVALID_IMAGE;
    *text = strdup(image);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
