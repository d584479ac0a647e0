/* Files that a session's options may ask for: optimized models with their weights, and profiles (profiles.c). The API server has them,
 * and the guest writes the application's. */
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

static struct wanted_files *wanted_by(const OrtSessionOptions *options) {
    return options ? metadata(struct wanted_files, (OrtSessionOptions *)(uintptr_t)options) : NULL;
}

int wants_files(const OrtSessionOptions *options) {
    const struct wanted_files *wanted = wanted_by(options);
    return wanted && (*wanted->model || wanted->profiles);
}

/* An empty path takes an earlier one back. */
OrtStatus *want_optimized(OrtSessionOptions *options, const char *path) {
    struct wanted_files *wanted = wanted_by(options);
    if (!wanted || !path || strlen(path) >= sizeof wanted->model)
        return made_status(0);
    strcpy(wanted->model, path);
    return NULL;
}

/* NULL: no more profiles. */
OrtStatus *want_profile(OrtSessionOptions *options, const char *prefix) {
    struct wanted_files *wanted = wanted_by(options);
    if (!wanted || (prefix && strlen(prefix) >= sizeof wanted->profile))
        return made_status(0);
    wanted->profiles = prefix != NULL;
    strcpy(wanted->profile, prefix ? prefix : "");
    return NULL;
}

void copy_wanted(const OrtSessionOptions *from, OrtSessionOptions *const *to) {
    const struct wanted_files *wanted = wanted_by(from);
    struct wanted_files *copy = to ? wanted_by(*to) : NULL;
    if (wanted && copy)
        *copy = *wanted;
}

uint32_t saves_of(const OrtSessionOptions *options) {
    const struct wanted_files *wanted = wanted_by(options);
    return wanted ? (uint32_t)wanted->saves : 0;
}

int write_all(int file, const uint8_t *from, size_t bytes) {
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

static OrtStatus *not_written(const OrtApi *api, enum saved_file which, const char *path, const char *why) {
    char text[4608];
    snprintf(text, sizeof text, "The optimized model cannot be written to %.4096s: %s", path, why);
    return api->CreateStatus(which == WEIGHTS_FILE ? ORT_FAIL : ORT_INVALID_ARGUMENT, text);
}

/* Writes the file that the API server has saved; there is none for weights of a model that has only small ones. */
static OrtStatus *write_file(const OrtApi *api, const OrtSession *session, enum saved_file which, const char *path) {
    uint8_t *piece = malloc(PIECE);
    size_t size = 0;
    int file = -1;
    OrtStatus *status = piece ? NULL : not_written(api, which, path, "no memory");
    for (int first = 1; !status; first = 0) {
        size = 0;
        status = aviary_onnxruntime_saved_file(session, which, piece, PIECE, &size);
        if (status || (size == 0 && (!first || which == WEIGHTS_FILE)))
            break;
        if (file < 0)
            file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (file < 0 || !write_all(file, piece, size))
            status = not_written(api, which, path, strerror(errno));
    }
    free(piece);
    if (file >= 0 && close(file) != 0 && !status)
        status = not_written(api, which, path, strerror(errno));
    return status;
}

/* Writes the weights of the model that goes to `path`, if they have a file of their own. */
static OrtStatus *write_weights(const OrtApi *api, const OrtSession *session, const OrtSessionOptions *options, const char *path) {
    char name[4096], place[8200];
    size_t size = sizeof name;
    int has = 0;
    const char *slash = strrchr(path, '/');
    OrtStatus *status = api->HasSessionConfigEntry(options, OPTIMIZED_WEIGHTS, &has);
    if (!status && has)
        status = api->GetSessionConfigEntry(options, OPTIMIZED_WEIGHTS, name, &size);
    if (status || !has)
        return status;
    snprintf(place, sizeof place, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name);
    return write_file(api, session, WEIGHTS_FILE, place);
}

static OrtStatus *write_model(const OrtApi *api, const OrtSession *session, const OrtSessionOptions *options, const char *path) {
    OrtStatus *status = write_weights(api, session, options, path);
    return status ? status : write_file(api, session, MODEL_FILE, path);
}

static int32_t saves_for(const struct wanted_files *wanted) {
    const size_t length = strlen(wanted->model);
    const int ort = length > 4 && !strcmp(wanted->model + length - 4, ".ort");
    return (length ? SAVES_MODEL : 0) | (ort ? SAVES_ORT_FORMAT : 0) | (wanted->profiles ? SAVES_PROFILE : 0);
}

/* A session whose files the API server saves: with options of its own, which want none of the guest. */
OrtStatus *session_with_files(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, OrtSession **out) {
    const OrtApiBase *base = OrtGetApiBase();
    const OrtApi *api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    const struct wanted_files *wanted = wanted_by(options);
    OrtSessionOptions *own = NULL;
    if (!api)
        return made_status(1);
    OrtStatus *status = api->CloneSessionOptions(options, &own);
    struct wanted_files *saved = status ? NULL : wanted_by(own);
    if (saved) {
        *saved = (struct wanted_files){.saves = saves_for(wanted)};
        status = api->CreateSessionFromArray(env, model, bytes, own, out);
    }
    if (saved && !status) {
        if (*wanted->model)
            status = write_model(api, *out, options, wanted->model);
        if (!status && wanted->profiles)
            status = begin_profile(*out, wanted->profile);
        if (status) {
            api->ReleaseSession(*out);
            *out = NULL;
        }
    }
    if (own)
        api->ReleaseSessionOptions(own);
    return status;
}
