/* The linker: the driver's own, in the API server. Here are the application's buffers for what it says, and the linked
 * image, which belongs to the linker until that is destroyed. */
#include "guest/functions.h"
#include <stdlib.h>
#include <string.h>

struct cuda_link {
    struct log_buffers logs;
    void *image;
};

static struct cuda_link *link_of(CUlinkState state) {
    struct cuda_linker *object = cuda_linker_of(state);
    return object ? object->link : NULL;
}

CUresult cuda_link_create(unsigned int count, CUjit_option *options, void **values, CUlinkState *state) {
    aviary_jit_option plain[MOST_OPTIONS];
    if (!state || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_link *link = calloc(1, sizeof *link);
    if (!link)
        return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned int kept = cuda_option_numbers(count, options, values, plain, &link->logs);
    CUresult status = aviaryLinkCreate(state, plain, kept);
    struct cuda_linker *object = status == CUDA_SUCCESS ? cuda_linker_of(*state) : NULL;
    if (object)
        object->link = link;
    else
        free(link);
    return status;
}

/* The log so far; the application's values tell how much. */
static void fetch_link_log(CUlinkState state, struct cuda_link *link) {
    struct log_buffer *information = &link->logs.information, *errors = &link->logs.errors;
    unsigned int first = information->text ? information->bytes : 0, second = errors->text ? errors->bytes : 0;
    char *texts = first || second ? calloc(1, (size_t)first + second) : NULL;
    aviary_log_sizes sizes = {0};
    if (!texts && !link->logs.wall_time && !link->logs.threads)
        return;
    if (aviaryLinkLog(state, &sizes, texts, first, texts ? texts + first : NULL, second) == CUDA_SUCCESS) {
        if (texts) {
            cuda_take_log(information, texts, sizes.information < first ? sizes.information : first);
            cuda_take_log(errors, texts + first, sizes.errors < second ? sizes.errors : second);
        }
        cuda_take_outputs(&link->logs, &sizes.outputs);
    }
    free(texts);
}

CUresult cuda_link_add(CUlinkState state, CUjitInputType type, const void *data, size_t bytes, const char *name,
                       unsigned int count, CUjit_option *options, void **values) {
    aviary_jit_option plain[MOST_OPTIONS];
    struct log_buffers none;
    struct cuda_link *link = link_of(state);
    if (!data || !bytes || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    unsigned int kept = cuda_option_numbers(count, options, values, plain, &none);
    CUresult status = aviaryLinkAdd(state, type, data, bytes, name, plain, kept);
    fetch_link_log(state, link);
    return status;
}

CUresult cuda_link_add_file(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,
                            CUjit_option *options, void **values) {
    size_t bytes = 0;
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    void *content = cuda_read_file(path, &bytes);
    if (!content)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult status = cuda_link_add(state, type, content, bytes, path, count, options, values);
    free(content);
    return status;
}

CUresult cuda_link_complete(CUlinkState state, void **image, size_t *bytes) {
    struct cuda_link *link = link_of(state);
    size_t size = 0;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = aviaryLinkComplete(state, &size);
    fetch_link_log(state, link);
    if (status != CUDA_SUCCESS)
        return status;
    /* With a zero behind it, for who takes it for text. */
    void *fetched = calloc(1, size + 1);
    if (!fetched)
        return CUDA_ERROR_OUT_OF_MEMORY;
    status = aviaryLinkImage(state, fetched, size);
    if (status != CUDA_SUCCESS) {
        free(fetched);
        return status;
    }
    free(link->image);
    *image = link->image = fetched;
    if (bytes)
        *bytes = size;
    return CUDA_SUCCESS;
}

CUresult cuda_link_destroy(CUlinkState state) {
    struct cuda_link *link = link_of(state);
    CUresult status = aviaryLinkDestroy(state);
    if (status == CUDA_SUCCESS && link) {
        free(link->image);
        free(link);
    }
    return status;
}
