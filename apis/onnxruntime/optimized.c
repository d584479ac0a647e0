/* Optimized models, which a session's options may ask for: the API server saves them, and the guest writes the application's file. */
#include <aviary/guest.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "external.h"

/* Bytes that one call brings. */
enum { PIECE = 4 << 20 };

static struct optimized_model *model_of(const OrtSessionOptions *options) {
    return options ? metadata(struct optimized_model, (OrtSessionOptions *)(uintptr_t)options) : NULL;
}

int names_optimized(const OrtSessionOptions *options) {
    const struct optimized_model *model = model_of(options);
    return model && *model->path;
}

/* An empty path takes an earlier one back. */
OrtStatus *name_optimized(OrtSessionOptions *options, const char *path) {
    struct optimized_model *model = model_of(options);
    if (!model || !path || strlen(path) >= sizeof model->path)
        return made_status(0);
    strcpy(model->path, path);
    return NULL;
}

void copy_optimized(const OrtSessionOptions *from, OrtSessionOptions *const *to) {
    const struct optimized_model *model = model_of(from);
    struct optimized_model *copy = to ? model_of(*to) : NULL;
    if (model && copy)
        *copy = *model;
}

uint32_t saves_optimized(const OrtSessionOptions *options) {
    const struct optimized_model *model = model_of(options);
    return model && model->saved;
}

static int write_all(int file, const uint8_t *from, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = write(file, from, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return 0;
        from += written;
        bytes -= (size_t)written;
    }
    return 1;
}

static OrtStatus *not_written(const OrtApi *api, const char *path, const char *why) {
    char text[4608];
    snprintf(text, sizeof text, "The optimized model cannot be written to %.4096s: %s", path, why);
    return api->CreateStatus(ORT_INVALID_ARGUMENT, text);
}

/* Writes what the API server has saved. */
static OrtStatus *write_model(const OrtApi *api, const OrtSession *session, const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    uint8_t *piece = malloc(PIECE);
    size_t size = 0;
    OrtStatus *status = file < 0 || !piece ? not_written(api, path, strerror(errno)) : NULL;
    while (!status) {
        size = 0;
        status = aviary_onnxruntime_saved_model(session, piece, PIECE, &size);
        if (status || size == 0)
            break;
        if (!write_all(file, piece, size))
            status = not_written(api, path, strerror(errno));
    }
    free(piece);
    if (file >= 0 && close(file) != 0 && !status)
        status = not_written(api, path, strerror(errno));
    return status;
}

OrtStatus *session_optimized(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, OrtSession **out) {
    const OrtApiBase *base = OrtGetApiBase();
    const OrtApi *api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    OrtSessionOptions *own = NULL;
    if (!api)
        return made_status(1);
    OrtStatus *status = api->CloneSessionOptions(options, &own);
    struct optimized_model *saved = status ? NULL : model_of(own);
    if (saved) {
        *saved = (struct optimized_model){.saved = 1};
        status = api->CreateSessionFromArray(env, model, bytes, own, out);
    }
    if (saved && !status) {
        status = write_model(api, *out, model_of(options)->path);
        if (status) {
            api->ReleaseSession(*out);
            *out = NULL;
        }
    }
    if (own)
        api->ReleaseSessionOptions(own);
    return status;
}
