/* Images of device code: an application passes a pointer, the driver finds out by itself where the image ends. */
#include "guest/functions.h"
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The wrapper that compilers put around a container of images in an executable. */
struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void *data;
    void *names;
};
enum { WRAPPER = 0x466243b1, CONTAINER = 0xba55ed50 };

/* A container: the header's own size, then that of what follows. */
struct container {
    uint32_t magic;
    uint16_t version;
    uint16_t header;
    uint64_t bytes;
};

static size_t elf_bytes(const unsigned char *image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64)
        return 0;
    size_t end = header.e_ehsize;
    size_t sections = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
    size_t segments = header.e_phoff + (size_t)header.e_phnum * header.e_phentsize;
    end = sections > end ? sections : end;
    end = segments > end ? segments : end;
    for (unsigned int i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + (size_t)i * header.e_shentsize, sizeof section);
        if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > end)
            end = section.sh_offset + section.sh_size;
    }
    for (unsigned int i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, image + header.e_phoff + (size_t)i * header.e_phentsize, sizeof segment);
        if (segment.p_offset + segment.p_filesz > end)
            end = segment.p_offset + segment.p_filesz;
    }
    return end;
}

/* The image itself, without what an executable wraps around it. */
static const void *unwrap(const void *image) {
    struct wrapper wrapper;
    memcpy(&wrapper.magic, image, sizeof wrapper.magic);
    if (wrapper.magic != WRAPPER)
        return image;
    memcpy(&wrapper, image, sizeof wrapper);
    return wrapper.data;
}

/* Bytes of an image; text ends with a zero, which counts. */
static size_t image_bytes(const void *image) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == CONTAINER) {
        struct container container;
        memcpy(&container, image, sizeof container);
        return container.header + container.bytes;
    }
    if (memcmp(image, ELFMAG, SELFMAG) == 0)
        return elf_bytes(image);
    return strlen(image) + 1;
}

/* ---- Options of the driver's compiler ------------------------------------------------------- */

enum { LONGEST_LOG = 1 << 20 };

static aviary_jit_option log_size(struct log_buffer *log, CUjit_option option, void **value) {
    uintptr_t bytes = (uintptr_t)*value;
    log->bytes = bytes < LONGEST_LOG ? (unsigned int)bytes : LONGEST_LOG;
    log->bytes_written = value;
    *value = NULL;
    return (aviary_jit_option){option, log->bytes};
}

unsigned int cuda_option_numbers(unsigned int count, const CUjit_option *options, void **values, aviary_jit_option *to,
                                 struct log_buffers *logs) {
    unsigned int kept = 0;
    *logs = (struct log_buffers){0};
    for (unsigned int i = 0; options && values && i < count && kept < MOST_OPTIONS; i++) {
        switch (options[i]) {
        case CU_JIT_INFO_LOG_BUFFER: logs->information.text = values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER: logs->errors.text = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            to[kept++] = log_size(&logs->information, options[i], &values[i]);
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            to[kept++] = log_size(&logs->errors, options[i], &values[i]);
            break;
        case CU_JIT_WALL_TIME:
            logs->wall_time = &values[i];
            to[kept++] = (aviary_jit_option){options[i], 0};
            break;
        case CU_JIT_THREADS_PER_BLOCK:
            logs->threads = &values[i];
            to[kept++] = (aviary_jit_option){options[i], (unsigned int)(uintptr_t)values[i]};
            break;
        case CU_JIT_MAX_REGISTERS:
        case CU_JIT_OPTIMIZATION_LEVEL:
        case CU_JIT_TARGET_FROM_CUCONTEXT:
        case CU_JIT_TARGET:
        case CU_JIT_FALLBACK_STRATEGY:
        case CU_JIT_GENERATE_DEBUG_INFO:
        case CU_JIT_GENERATE_LINE_INFO:
        case CU_JIT_CACHE_MODE:
        case CU_JIT_LOG_VERBOSE:
        case CU_JIT_FAST_COMPILE:
        case CU_JIT_LTO:
        case CU_JIT_FTZ:
        case CU_JIT_PREC_DIV:
        case CU_JIT_PREC_SQRT:
        case CU_JIT_FMA:
        case CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES:
        case CU_JIT_POSITION_INDEPENDENT_CODE:
        case CU_JIT_MIN_CTA_PER_SM:
        case CU_JIT_MAX_THREADS_PER_BLOCK:
        case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
        case CU_JIT_SPLIT_COMPILE:
            to[kept++] = (aviary_jit_option){options[i], (unsigned int)(uintptr_t)values[i]};
            break;
        default:
            break;
        }
    }
    return kept;
}

void cuda_take_log(struct log_buffer *log, const char *text, unsigned int bytes) {
    if (log->text && log->bytes) {
        memcpy(log->text, text, bytes);
        log->text[bytes < log->bytes ? bytes : log->bytes - 1] = 0;
    }
    if (log->bytes_written)
        *log->bytes_written = (void *)(uintptr_t)bytes;
}

void cuda_take_outputs(const struct log_buffers *logs, const aviary_jit_outputs *outputs) {
    if (logs->wall_time)
        memcpy(logs->wall_time, &outputs->wall_time, sizeof outputs->wall_time);
    if (logs->threads)
        *logs->threads = (void *)(uintptr_t)outputs->threads;
}

/* Fetched once the image is loaded or refused, for who has given a buffer. */
static void fetch_logs(struct log_buffers *logs) {
    unsigned int information = logs->information.text ? logs->information.bytes : 0;
    unsigned int errors = logs->errors.text ? logs->errors.bytes : 0;
    if (!information && !errors)
        return;
    char *texts = calloc(1, (size_t)information + errors + 1);
    unsigned int information_bytes = 0, errors_bytes = 0;
    if (!texts)
        return;
    if (aviaryCompilerLog(texts, information, &information_bytes, texts + information, errors, &errors_bytes) == CUDA_SUCCESS) {
        cuda_take_log(&logs->information, texts, information_bytes < information ? information_bytes : information);
        cuda_take_log(&logs->errors, texts + information, errors_bytes < errors ? errors_bytes : errors);
    }
    free(texts);
}

/* The image becomes a module of the current context, or a library. */
struct loaded {
    int is_module;
    CUmodule *module;
    CUlibrary *library;
};

static CUresult check_target(struct loaded to) {
    if (to.is_module && cuda_lacks_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    return to.module || to.library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult load(struct loaded to, const void *image, CUjit_option *options, void **values, unsigned int count) {
    aviary_jit_option plain[MOST_OPTIONS];
    struct log_buffers logs;
    CUresult status = check_target(to);
    if (status != CUDA_SUCCESS)
        return status;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    image = unwrap(image);
    if (!image)
        return CUDA_ERROR_INVALID_IMAGE;
    unsigned int kept = cuda_option_numbers(count, options, values, plain, &logs);
    aviary_jit_outputs outputs = {0, 0}, *asked = logs.wall_time || logs.threads ? &outputs : NULL;
    status = to.module ? aviaryModuleLoad(to.module, image, image_bytes(image), plain, kept, asked)
                       : aviaryLibraryLoad(to.library, image, image_bytes(image), plain, kept, asked);
    cuda_take_outputs(&logs, &outputs);
    fetch_logs(&logs);
    return status;
}

CUresult cuda_load_module(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values) {
    return load((struct loaded){.is_module = 1, .module = module}, image, options, values, count);
}

CUresult cuda_load_library(CUlibrary *library, const void *image, CUjit_option *options, void **values,
                           unsigned int count) {
    return load((struct loaded){.library = library}, image, options, values, count);
}

/* ---- Images in files ------------------------------------------------------------------------ */

/* The file's content with a zero behind it (text may come without); NULL if it cannot be read. */
void *cuda_read_file(const char *path, size_t *size) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file)
        return NULL;
    char *content = NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long bytes = ftell(file);
        rewind(file);
        content = bytes > 0 ? calloc(1, (size_t)bytes + 64) : NULL;
        if (content && fread(content, 1, (size_t)bytes, file) != (size_t)bytes) {
            free(content);
            content = NULL;
        }
        *size = (size_t)bytes;
    }
    fclose(file);
    return content;
}

static CUresult load_file(struct loaded to, const char *path, CUjit_option *options, void **values, unsigned int count) {
    size_t bytes = 0;
    CUresult status = check_target(to);
    if (status != CUDA_SUCCESS)
        return status;
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    void *image = cuda_read_file(path, &bytes);
    if (!image)
        return CUDA_ERROR_FILE_NOT_FOUND;
    status = load(to, image, options, values, count);
    free(image);
    return status;
}

CUresult cuda_load_module_file(CUmodule *module, const char *path) {
    return load_file((struct loaded){.is_module = 1, .module = module}, path, NULL, NULL, 0);
}

CUresult cuda_load_library_file(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                                unsigned int count) {
    return load_file((struct loaded){.library = library}, path, options, values, count);
}
