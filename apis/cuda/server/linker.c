/* The server's side of the linker: the driver's linker, and what it has to find where it was told for as long as it lives. */
#include "server.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The server's object for a CUlinkState. */
struct link {
    CUlinkState state;
    struct compiler_log information, errors;
    CUjit_option options[2 * MOST_OPTIONS];
    void *values[2 * MOST_OPTIONS];
    /* The driver's; it lives as long as the state. */
    const void *image;
    size_t bytes;
};

static struct link *link_of(CUlinkState state) {
    return (struct link *)state;
}

static void end_link(struct link *link) {
    cuda_drop_log(&link->information);
    cuda_drop_log(&link->errors);
    free(link);
}

static CUresult link_create(CUlinkState *state, const aviary_jit_option *options, unsigned int count) {
    struct link *link = calloc(1, sizeof *link);
    if (!link || !state) {
        free(link);
        return state ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = cuda_spread_options(options, &count, link->options, link->values, &link->information, &link->errors);
    if (status == CUDA_SUCCESS)
        status = cuLinkCreate_v2(count, link->options, link->values, &link->state);
    if (status != CUDA_SUCCESS) {
        end_link(link);
        return status;
    }
    *state = (CUlinkState)link;
    return CUDA_SUCCESS;
}

void *cuda_link_create_function(void) {
    return (void *)link_create;
}

/* Options of one input: numbers only, what is said belongs to the whole. */
static CUresult spread_numbers(const aviary_jit_option *from, unsigned int *count, CUjit_option *options, void **values) {
    struct compiler_log information = {.option = -1}, errors = {.option = -1};
    CUresult status = cuda_spread_options(from, count, options, values, &information, &errors);
    int said = information.text || errors.text;
    cuda_drop_log(&information);
    cuda_drop_log(&errors);
    return status == CUDA_SUCCESS && said ? CUDA_ERROR_INVALID_VALUE : status;
}

static CUresult link_add(CUlinkState state, CUjitInputType type, const void *data, size_t bytes, const char *name,
                         const aviary_jit_option *from, unsigned int count) {
    CUjit_option options[2 * MOST_OPTIONS];
    void *values[2 * MOST_OPTIONS];
    if (!state)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = spread_numbers(from, &count, options, values);
    if (status != CUDA_SUCCESS)
        return status;
    if ((type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_FATBINARY) && !cuda_image_is_whole(data, bytes))
        return CUDA_ERROR_INVALID_IMAGE;
    /* Text may come without its end, and the driver may look for it. */
    char *copy = calloc(1, bytes + 1);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, data, bytes);
    status = cuLinkAddData_v2(link_of(state)->state, type, copy, bytes, name, count, options, values);
    free(copy);
    return status;
}

void *cuda_link_add_function(void) {
    return (void *)link_add;
}

static CUresult link_complete(CUlinkState state, size_t *bytes) {
    struct link *link = link_of(state);
    void *image = NULL;
    size_t size = 0;
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuLinkComplete(link->state, &image, &size);
    if (status == CUDA_SUCCESS) {
        link->image = image;
        *bytes = link->bytes = size;
    }
    return status;
}

void *cuda_link_complete_function(void) {
    return (void *)link_complete;
}

static CUresult link_image(CUlinkState state, void *image, size_t capacity) {
    const struct link *link = link_of(state);
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!image || !link->image || capacity != link->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(image, link->image, capacity);
    return CUDA_SUCCESS;
}

void *cuda_link_image_function(void) {
    return (void *)link_image;
}

/* The text, and the size that the driver has put where it was told to. */
static unsigned int tell_log(const struct link *link, const struct compiler_log *log, char *to, unsigned int capacity) {
    if (!log->text)
        return 0;
    size_t present = strnlen(log->text, log->bytes);
    if (to)
        memcpy(to, log->text, present < capacity ? present : capacity);
    uintptr_t written = (uintptr_t)link->values[log->option];
    return written < log->bytes ? (unsigned int)written : log->bytes;
}

static CUresult link_log(CUlinkState state, aviary_log_sizes *sizes, char *information, unsigned int information_capacity,
                         char *errors, unsigned int errors_capacity) {
    const struct link *link = link_of(state);
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sizes)
        return CUDA_ERROR_INVALID_VALUE;
    sizes->information = tell_log(link, &link->information, information, information_capacity);
    sizes->errors = tell_log(link, &link->errors, errors, errors_capacity);
    return CUDA_SUCCESS;
}

void *cuda_link_log_function(void) {
    return (void *)link_log;
}

static CUresult link_destroy(CUlinkState state) {
    struct link *link = link_of(state);
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = cuLinkDestroy(link->state);
    /* Otherwise its handle stays. */
    if (status == CUDA_SUCCESS)
        end_link(link);
    return status;
}

void *cuda_link_destroy_function(void) {
    return (void *)link_destroy;
}
