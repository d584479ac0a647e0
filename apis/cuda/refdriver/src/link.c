/* The linker: text is put behind text, and the result is text again. Declarations of what another input defines are not
 * understood, so it links what could have been one file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

struct CUlinkState_st {
    struct object object;
    unsigned count;
    /* The application's, which get what there is to say. */
    CUjit_option *options;
    void **values;
    char *text;
    size_t size;
};

static void destroy(void *object) { free(((CUlinkState)object)->text); }

/* Into a buffer of the application, behind what is there; the value of the size's option becomes what is used. */
static void say(CUlinkState state, CUjit_option which, CUjit_option which_size, const char *message)
{
    char *buffer = NULL;
    size_t *used = NULL, room = 0, length;

    for (unsigned i = 0; i < state->count; i++) {
        if (state->options[i] == which)
            buffer = state->values[i];
        else if (state->options[i] == which_size)
            used = (size_t *)&state->values[i];
    }
    if (!buffer || !used || !*used)
        return;
    room = *used;
    snprintf(buffer, room, "%s", message);
    length = strlen(buffer) + 1;
    *used = length < room ? length : room;
}

CUresult cuLinkCreate(unsigned count, CUjit_option *options, void **values, CUlinkState *result)
{
    CUcontext context;
    CUresult error = result && (!count || (options && values)) ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;
    CUlinkState state;

    if (error != CUDA_SUCCESS)
        return error;
    state = object_new(KIND_LINKER, sizeof(*state), destroy);
    if (!state)
        return CUDA_ERROR_OUT_OF_MEMORY;
    state->count = count;
    state->options = options;
    state->values = values;
    *result = state;
    return CUDA_SUCCESS;
}

static CUresult add(CUlinkState state, const char *text, size_t size)
{
    char message[200] = "", *grown, *whole = strndup(text, size);
    struct ptx_program *program = whole ? ptx_parse(whole, allocate_nothing, NULL, message) : NULL;

    free(whole);
    if (!program) {
        say(state, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, message);
        return CUDA_ERROR_INVALID_PTX;
    }
    ptx_free(program);
    size = strnlen(text, size);
    grown = realloc(state->text, state->size + size + 2);
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    state->text = grown;
    memcpy(grown + state->size, text, size);
    state->size += size;
    grown[state->size++] = '\n';
    grown[state->size] = 0;
    return CUDA_SUCCESS;
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned count,
                       CUjit_option *options, void **values)
{
    (void)name;
    (void)options;
    (void)values;
    (void)count;
    if (!object_check(state, KIND_LINKER))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !size || (unsigned)type >= CU_JIT_NUM_INPUT_TYPES)
        return CUDA_ERROR_INVALID_VALUE;
    return type == CU_JIT_INPUT_PTX ? add(state, data, size) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned count, CUjit_option *options,
                       void **values)
{
    char *bytes;
    CUresult result = path ? image_read(path, &bytes) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    result = cuLinkAddData(state, type, bytes, strlen(bytes) + 1, path, count, options, values);
    free(bytes);
    return result;
}

CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    if (!object_check(state, KIND_LINKER))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    if (!state->text)
        return CUDA_ERROR_INVALID_IMAGE;
    say(state, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "info    : linked");
    *image = state->text;
    if (size)
        *size = state->size + 1;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
    if (!object_check(state, KIND_LINKER))
        return CUDA_ERROR_INVALID_HANDLE;
    object_end(state);
    return CUDA_SUCCESS;
}
