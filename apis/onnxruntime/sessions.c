/* Sessions of models whose weights are in files, which the guest has sent (external.h), and models that are saved for it.
 *
 * A hostile guest can send any bytes as such content: all lengths are checked against what has arrived. */
#include <aviary/server.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "external.h"
#include "saved.h"

/* Files as the library takes them. */
struct files {
    const char **names;
    char **contents;
    size_t *bytes;
    size_t count;
};

static void free_files(struct files *files) {
    free(files->names);
    free(files->contents);
    free(files->bytes);
}

/* Takes the next file; 0 if there is none, or not all of it. */
static int take_file(const uint8_t **at, const uint8_t *end, struct external_file *head) {
    if ((size_t)(end - *at) < sizeof *head)
        return 0;
    memcpy(head, *at, sizeof *head);
    *at += sizeof *head;
    const uint64_t left = (uint64_t)(end - *at), bytes = head->bytes == NO_FILE ? 0 : head->bytes;
    return head->name_bytes > 0 && head->name_bytes <= left && bytes <= left - head->name_bytes && (*at)[head->name_bytes - 1] == 0;
}

static size_t count_files(const uint8_t *at, const uint8_t *end) {
    struct external_file head;
    size_t count = 1;
    for (; at < end && take_file(&at, end, &head); count++)
        at += head.name_bytes + (head.bytes == NO_FILE ? 0 : head.bytes);
    return count;
}

/* Finds the files in the content. */
static OrtStatus *find_files(const OrtApi *api, const uint8_t *content, size_t bytes, struct files *files) {
    const uint8_t *at = content + sizeof(struct external_content), *end = content + bytes;
    struct external_file head;
    if (bytes < sizeof(struct external_content))
        return refuse(api, ORT_INVALID_ARGUMENT, "%s", "files of the model did not arrive");
    const size_t most = count_files(at, end);
    files->names = calloc(most, sizeof *files->names);
    files->contents = calloc(most, sizeof *files->contents);
    files->bytes = calloc(most, sizeof *files->bytes);
    if (!files->names || !files->contents || !files->bytes)
        return refuse(api, ORT_FAIL, "%s", "no memory for the names of the model's files");
    /* The guest can change what is there between both looks. */
    while (at < end && files->count < most) {
        if (!take_file(&at, end, &head))
            return refuse(api, ORT_INVALID_ARGUMENT, "%s", "files of the model did not arrive");
        if (head.bytes == NO_FILE)
            return refuse(api, ORT_FAIL, "External data path does not exist: \"%.8192s\"", (const char *)at);
        files->names[files->count] = (const char *)at;
        files->contents[files->count] = (char *)(uintptr_t)(at + head.name_bytes);
        files->bytes[files->count++] = head.bytes;
        at += head.name_bytes + head.bytes;
    }
    return NULL;
}

/* What a session is made of beside its model. */
struct extras {
    struct files files;
    /* The session's own options; NULL: the application's. */
    OrtSessionOptions *options;
    struct places places;
};

static OrtStatus *add_files(const OrtApi *api, struct extras *extras, const void *external, size_t bytes) {
    OrtStatus *status = find_files(api, external, bytes, &extras->files);
    if (status)
        return status;
    if (!api->AddExternalInitializersFromFilesInMemory)
        return refuse(api, ORT_NOT_IMPLEMENTED, "%s", "the library is too old for files of a model that come from elsewhere (1.18)");
    return api->AddExternalInitializersFromFilesInMemory(extras->options, extras->files.names, extras->files.contents, extras->files.bytes,
                                                         extras->files.count);
}

static OrtStatus *prepare(const OrtApi *api, const OrtSessionOptions *options, struct extras *extras, const void *external,
                          size_t external_bytes, uint32_t saves) {
    OrtStatus *status = options ? api->CloneSessionOptions(options, &extras->options) : api->CreateSessionOptions(&extras->options);
    if (!status && external_bytes > 0)
        status = add_files(api, extras, external, external_bytes);
    if (!status && saves)
        status = place_saved(api, &extras->places, extras->options, saves);
    return status;
}

/* Ends what is not needed once the session is made, or was not made. */
static OrtStatus *finish(const OrtApi *api, struct extras *extras, OrtStatus *status, OrtSession **out) {
    status = keep_saved(api, &extras->places, status, out);
    if (extras->options)
        api->ReleaseSessionOptions(extras->options);
    free_files(&extras->files);
    return status;
}

static OrtStatus *create_session(const OrtEnv *env, const void *model, size_t model_bytes, const OrtSessionOptions *options,
                                 const void *external, size_t external_bytes, uint32_t saves, OrtSession **out) {
    const OrtApi *api = vendor_api();
    struct extras extras = {0};
    OrtStatus *status = prepare(api, options, &extras, external, external_bytes, saves);
    if (!status)
        status = api->CreateSessionFromArray(env, model, model_bytes, extras.options, out);
    return finish(api, &extras, status, out);
}

void *create_session_function(void) {
    return (void *)(uintptr_t)create_session;
}

/* Bytes of the model into a file without a name; -1 if there is none. */
static int file_of(const void *model, size_t bytes) {
    /* The function of that name is in glibc 2.27 and newer only. */
    int file = (int)syscall(SYS_memfd_create, "model", MFD_CLOEXEC);
    size_t written = 0;
    while (file >= 0 && written < bytes) {
        ssize_t more = write(file, (const char *)model + written, bytes - written);
        if (more <= 0) {
            close(file);
            return -1;
        }
        written += (size_t)more;
    }
    return file;
}

/* Of a model in memory the library does not say whether loading it or a later step has failed, and what it says differs. So one that
 * has failed is loaded again, from a file. */
static OrtStatus *load_error(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, char *to, size_t room) {
    const OrtApi *api = vendor_api();
    OrtSession *session = NULL;
    char path[32], begin[64];
    if (!to || room == 0)
        return NULL;
    to[0] = 0;
    int file = file_of(model, bytes);
    if (file < 0)
        return NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    snprintf(begin, sizeof begin, "Load model from %s failed:", path);
    OrtStatus *status = api->CreateSession(env, path, options, &session);
    const char *text = status ? api->GetErrorMessage(status) : "";
    /* It names the file where it could not read it. */
    if (!strncmp(text, begin, strlen(begin)) && !strstr(text + strlen(begin), path))
        snprintf(to, room, "%s", text + strlen(begin));
    if (status)
        api->ReleaseStatus(status);
    if (session)
        api->ReleaseSession(session);
    close(file);
    return NULL;
}

void *load_error_function(void) {
    return (void *)(uintptr_t)load_error;
}
