/* The server's side of images of device code: what has to be true of them before the driver looks, the compiler's
 * options, and what it says. */
#include "moving.h"
#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The driver looks at as many bytes as the image itself says: those must have arrived. */
int cuda_image_is_whole(const void *image, size_t bytes) {
    struct {
        uint32_t magic;
        uint16_t version, header;
        uint64_t bytes;
    } container;
    if (bytes > sizeof container) {
        memcpy(&container, image, sizeof container);
        if (container.magic == 0xba55ed50)
            return container.bytes <= bytes && container.header <= bytes - container.bytes;
    }
    if (bytes > sizeof(Elf64_Ehdr) && memcmp(image, ELFMAG, SELFMAG) == 0) {
        Elf64_Ehdr header;
        memcpy(&header, image, sizeof header);
        return header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_shoff <= bytes
               && (size_t)header.e_shnum * header.e_shentsize <= bytes - header.e_shoff && header.e_phoff <= bytes
               && (size_t)header.e_phnum * header.e_phentsize <= bytes - header.e_phoff;
    }
    return bytes && ((const char *)image)[bytes - 1] == 0;
}

/* ---- What the compiler says ------------------------------------------------------------------ */

enum { LONGEST_LOG = 1 << 20 };

/* Each thread stands for one of the application's, which asks for it when the image is loaded or refused. */
static __thread struct compiler_log information_log, error_log;

void cuda_drop_log(struct compiler_log *log) {
    free(log->text);
    *log = (struct compiler_log){.option = -1};
}

/* Two options for one: the buffer itself and its size. */
static CUresult want_log(struct compiler_log *log, unsigned int bytes, CUjit_option buffer, CUjit_option size,
                         CUjit_option *options, void **values, unsigned int *count) {
    if (bytes > LONGEST_LOG || log->text)
        return CUDA_ERROR_INVALID_VALUE;
    log->text = calloc(1, (size_t)bytes + 1);
    if (!log->text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    options[*count] = buffer;
    values[(*count)++] = log->text;
    log->bytes = bytes;
    log->option = (int)*count;
    options[*count] = size;
    values[(*count)++] = (void *)(uintptr_t)bytes;
    return CUDA_SUCCESS;
}

static void keep_log(struct compiler_log *log, void **values) {
    if (log->option < 0 || !log->text)
        return;
    uintptr_t written = (uintptr_t)values[log->option];
    log->bytes = written < log->bytes ? (unsigned int)written : log->bytes;
}

static void keep_logs(void **values) {
    keep_log(&information_log, values);
    keep_log(&error_log, values);
}

/* Threads whose logs have something that was not fetched. */
static int unread;
static __thread int is_unread;

static void set_unread(int now) {
    if (now != is_unread)
        __atomic_add_fetch(&unread, now ? 1 : -1, __ATOMIC_ACQ_REL);
    is_unread = now;
}

static void note_logs(void) {
    set_unread(information_log.text || error_log.text);
}

/* Of loads that were made again for a session that has moved here: this thread is nobody's. */
void cuda_forget_logs(void) {
    set_unread(0);
}

int cuda_has_unread_logs(void) {
    return __atomic_load_n(&unread, __ATOMIC_ACQUIRE) > 0;
}

static void copy_log(const struct compiler_log *log, char *to, unsigned int capacity, unsigned int *bytes) {
    unsigned int present = log->text ? log->bytes : 0;
    if (to)
        memcpy(to, log->text ? log->text : "", present < capacity ? present : capacity);
    *bytes = present;
}

/* The driver writes its answers over the options' values. */
aviary_jit_outputs cuda_jit_outputs(const CUjit_option *options, void *const *values, unsigned int count) {
    aviary_jit_outputs outputs = {0, 0};
    for (unsigned int i = 0; i < count; i++) {
        if (options[i] == CU_JIT_WALL_TIME)
            memcpy(&outputs.wall_time, &values[i], sizeof outputs.wall_time);
        else if (options[i] == CU_JIT_THREADS_PER_BLOCK)
            outputs.threads = (unsigned int)(uintptr_t)values[i];
    }
    return outputs;
}

static CUresult compiler_log(char *information, unsigned int information_capacity, unsigned int *information_bytes, char *errors,
                             unsigned int errors_capacity, unsigned int *errors_bytes) {
    if (!information_bytes || !errors_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    copy_log(&information_log, information, information_capacity, information_bytes);
    copy_log(&error_log, errors, errors_capacity, errors_bytes);
    set_unread(0);
    return CUDA_SUCCESS;
}

void *cuda_compiler_log_function(void) {
    return (void *)compiler_log;
}

/* ---- Options --------------------------------------------------------------------------------- */

/* `count` becomes the number of the driver's options, of which there is room for twice as many. */
CUresult cuda_spread_options(const aviary_jit_option *from, unsigned int *count, CUjit_option *options, void **values,
                             struct compiler_log *information, struct compiler_log *errors) {
    unsigned int given = *count;
    *count = 0;
    cuda_drop_log(information);
    cuda_drop_log(errors);
    if (given > MOST_OPTIONS || (given && !from))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < given; i++) {
        CUresult status = CUDA_SUCCESS;
        switch (from[i].option) {
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            status = want_log(information, from[i].value, CU_JIT_INFO_LOG_BUFFER, from[i].option, options, values, count);
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            status = want_log(errors, from[i].value, CU_JIT_ERROR_LOG_BUFFER, from[i].option, options, values, count);
            break;
        case CU_JIT_WALL_TIME:
        case CU_JIT_THREADS_PER_BLOCK:
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
            options[*count] = from[i].option;
            values[(*count)++] = (void *)(uintptr_t)from[i].value;
            break;
        default:
            /* The others are addresses. */
            status = CUDA_ERROR_INVALID_VALUE;
        }
        if (status != CUDA_SUCCESS)
            return status;
    }
    return CUDA_SUCCESS;
}

/* ---- Modules and libraries -------------------------------------------------------------------- */

/* Into a module or a library, one of the two. */
static CUresult load(CUmodule *module, CUlibrary *library, const void *image, size_t bytes, const aviary_jit_option *from,
                     unsigned int count, aviary_jit_outputs *outputs) {
    CUjit_option options[2 * MOST_OPTIONS];
    void *values[2 * MOST_OPTIONS];
    CUresult status = cuda_spread_options(from, &count, options, values, &information_log, &error_log);
    if (status != CUDA_SUCCESS)
        return status;
    if (!image || !cuda_image_is_whole(image, bytes))
        return CUDA_ERROR_INVALID_IMAGE;
    status = module ? cuModuleLoadDataEx(module, image, count, options, values)
                    : cuLibraryLoadData(library, image, options, values, count, NULL, NULL, 0);
    keep_logs(values);
    note_logs();
    if (status == CUDA_SUCCESS)
        cuda_note_image(module ? (const void *)*module : (const void *)*library, image, bytes);
    if (outputs)
        *outputs = cuda_jit_outputs(options, values, count);
    return status;
}

static CUresult module_load(CUmodule *module, const void *image, size_t bytes, const aviary_jit_option *from, unsigned int count,
                            aviary_jit_outputs *outputs) {
    return module ? load(module, NULL, image, bytes, from, count, outputs) : CUDA_ERROR_INVALID_VALUE;
}

void *cuda_module_load_function(void) {
    return (void *)module_load;
}

static CUresult library_load(CUlibrary *library, const void *image, size_t bytes, const aviary_jit_option *from, unsigned int count,
                             aviary_jit_outputs *outputs) {
    return library ? load(NULL, library, image, bytes, from, count, outputs) : CUDA_ERROR_INVALID_VALUE;
}

void *cuda_library_load_function(void) {
    return (void *)library_load;
}
