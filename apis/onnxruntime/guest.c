/* Statuses that the guest makes, and models in files, which are the application's. */
#include <aviary/guest.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "external.h"

/* Bytes of a path that a text has at most. */
enum { LONGEST_PATH = 4096 };

/* Three exist, and nobody owns them: releasing one does nothing. */
struct made_status {
    int32_t code;
    const char *text;
};
static const struct made_status made_statuses[] = {
    {ORT_FAIL, "the call was refused"},
    {ORT_RUNTIME_EXCEPTION, "the API server is gone"},
    {ORT_NOT_IMPLEMENTED, "the function is not virtualized"},
};

OrtStatus *made_status(uint32_t number) {
    return (OrtStatus *)(uintptr_t)&made_statuses[number];
}

int is_made(const OrtStatus *status) {
    uintptr_t at = (uintptr_t)status, first = (uintptr_t)made_statuses;
    return at >= first && at < first + sizeof made_statuses;
}

OrtErrorCode made_code(const OrtStatus *status) {
    return (OrtErrorCode)((const struct made_status *)(const void *)status)->code;
}

const char *made_text(const OrtStatus *status) {
    return ((const struct made_status *)(const void *)status)->text;
}

static struct told_status *told(const OrtStatus *status) {
    return metadata(struct told_status, (OrtStatus *)(uintptr_t)status);
}

void tell_status(OrtStatus *status, int64_t code, const char *text) {
    struct told_status *place = told(status);
    if (place)
        *place = (struct told_status){text ? text : "", (int32_t)code, 1};
}

int is_told(const OrtStatus *status) {
    const struct told_status *place = told(status);
    return place && place->known;
}

OrtErrorCode told_code(const OrtStatus *status) {
    return (OrtErrorCode)told(status)->code;
}

const char *told_text(const OrtStatus *status) {
    return told(status)->text;
}

/* The place in which an object shares what is bound to a value of that name. */
uint64_t name_place(const char *name) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; name && *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3;
    return hash >> 8;
}

/* The file's content and size; NULL if it cannot be read. */
static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *content = NULL;
    size_t capacity = 0, used = 0;
    if (!file)
        return NULL;
    for (size_t more = 1; more; used += more) {
        if (used == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *larger = realloc(content, capacity);
            if (!larger)
                break;
            content = larger;
        }
        more = fread(content + used, 1, capacity - used, file);
    }
    int whole = feof(file) && !ferror(file);
    fclose(file);
    if (!whole) {
        free(content);
        return NULL;
    }
    *size = used;
    return content;
}

/* A session of a model whose other files are in its folder. */
static OrtStatus *session_beside(const OrtApi *api, const OrtEnv *env, const char *path, const void *model, size_t size,
                                 const OrtSessionOptions *options, OrtSession **out) {
    OrtSessionOptions *own = NULL;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    OrtStatus *status = options ? api->CloneSessionOptions(options, &own) : api->CreateSessionOptions(&own);
    if (!status && !folder)
        status = api->CreateStatus(ORT_FAIL, "no memory for the name of the model's folder");
    if (!status)
        status = api->AddSessionConfigEntry(own, EXTERNAL_FOLDER, folder);
    if (!status)
        status = api->CreateSessionFromArray(env, model, size, own, out);
    if (own)
        api->ReleaseSessionOptions(own);
    free(folder);
    return status;
}

/* What the library says of a file that cannot be read. */
static OrtStatus *unread(const OrtApi *api, const char *path, int reason) {
    char text[2 * LONGEST_PATH + 64];
    if (reason == ENOENT)
        snprintf(text, sizeof text, "Load model from %.*s failed:Load model %.*s failed. File doesn't exist", LONGEST_PATH, path, LONGEST_PATH,
                 path);
    else
        snprintf(text, sizeof text, "Load model from %.*s failed:%s", LONGEST_PATH, path, strerror(reason));
    return api->CreateStatus(ORT_NO_SUCHFILE, text);
}

/* What it says of a model that it has read and cannot load: of one in memory it does not say where that is from. */
static OrtStatus *naming(const OrtApi *api, const OrtEnv *env, const char *path, const void *model, size_t size,
                         const OrtSessionOptions *options, OrtStatus *status) {
    enum { LONGEST_REASON = 8192 };
    char reason[LONGEST_REASON] = "", text[LONGEST_PATH + LONGEST_REASON + 32];
    if (is_made(status))
        return status;
    OrtStatus *unknown = aviary_onnxruntime_load_error(env, model, size, options, reason, sizeof reason);
    if (unknown)
        api->ReleaseStatus(unknown);
    if (unknown || !*reason)
        return status;
    snprintf(text, sizeof text, "Load model from %.*s failed:%s", LONGEST_PATH, path, reason);
    OrtErrorCode code = api->GetErrorCode(status);
    api->ReleaseStatus(status);
    return api->CreateStatus(code, text);
}

OrtStatus *session_from_file(const OrtEnv *env, const char *path, const OrtSessionOptions *options, OrtSession **out) {
    const OrtApiBase *base = OrtGetApiBase();
    const OrtApi *api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    size_t size = 0;
    if (!api)
        return made_status(1);
    if (!path)
        return made_status(0);
    void *model = read_file(path, &size);
    if (!model)
        return unread(api, path, errno);
    OrtStatus *status = has_external(model, size) ? session_beside(api, env, path, model, size, options, out)
                                                  : api->CreateSessionFromArray(env, model, size, options, out);
    if (status)
        status = naming(api, env, path, model, size, options, status);
    free(model);
    return status;
}

OrtStatus *session_from_array(const OrtEnv *env, const void *model, size_t size, const OrtSessionOptions *options, OrtSession **out) {
    const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    return api ? api->CreateSessionFromArray(env, model, size, options, out) : made_status(1);
}

OrtStatus *adapter_from_file(const char *path, OrtAllocator *allocator, OrtLoraAdapter **out) {
    const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    size_t size = 0;
    char text[LONGEST_PATH + 64];
    if (!api)
        return made_status(1);
    void *adapter = path ? read_file(path, &size) : NULL;
    if (!adapter) {
        snprintf(text, sizeof text, "cannot read the adapter %.*s: %s", LONGEST_PATH, path ? path : "(no path)", strerror(errno));
        return api->CreateStatus(ORT_INVALID_ARGUMENT, text);
    }
    OrtStatus *status = api->CreateLoraAdapterFromArray(adapter, size, allocator, out);
    free(adapter);
    return status;
}

/* An environment as the struct says, by the function that says as much. */
OrtStatus *env_with(const OrtEnvCreationOptions *options, OrtEnv **out) {
    const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (!api)
        return made_status(1);
    if (!options || !options->log_id || !out)
        return api->CreateStatus(ORT_INVALID_ARGUMENT, "an environment needs options with a log id, and a place for it");
    if (options->config_entries)
        return made_status(2);
    OrtLoggingLevel level = (OrtLoggingLevel)options->logging_severity_level;
    OrtLoggingFunction log = options->custom_logging_function;
    void *param = options->custom_logging_param;
    if (log && options->threading_options)
        return api->CreateEnvWithCustomLoggerAndGlobalThreadPools(log, param, level, options->log_id, options->threading_options, out);
    if (log)
        return api->CreateEnvWithCustomLogger(log, param, level, options->log_id, out);
    if (options->threading_options)
        return api->CreateEnvWithGlobalThreadPools(level, options->log_id, options->threading_options, out);
    return api->CreateEnv(level, options->log_id, out);
}
