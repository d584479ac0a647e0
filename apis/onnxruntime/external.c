/* Weights of a model that are in other files: which files a model names, and what is in them.
 *
 * In the guest, for each session that is made; the API server has the result as one piece of memory (external.h) and looks at no file.
 * The model is the program's own: one that is damaged names no files, and the library says what is wrong with it. */
#include <aviary/guest.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "external.h"
#include "model.h"

enum { LONGEST_NAME = 4096 };

/* The names of files, each once. */
struct names {
    struct message *list;
    size_t count, capacity;
    int failed;
    /* A nested graph names files, too. */
    int nested;
};

static void add_name(struct names *names, struct message name) {
    size_t bytes = (size_t)(name.end - name.at);
    /* Most tensors are in the file of the one before. */
    for (size_t n = names->count; n > 0; n--) {
        struct message known = names->list[n - 1];
        if ((size_t)(known.end - known.at) == bytes && !memcmp(known.at, name.at, bytes))
            return;
    }
    if (names->count == names->capacity) {
        size_t capacity = names->capacity ? 2 * names->capacity : 16;
        struct message *larger = realloc(names->list, capacity * sizeof *larger);
        if (!larger) {
            names->failed = 1;
            return;
        }
        names->list = larger;
        names->capacity = capacity;
    }
    names->list[names->count++] = name;
}

static void look_at_tensor(struct message tensor, struct names *names, unsigned depth) {
    struct place place = place_of(tensor);
    if (place.location.at && depth > 0)
        names->nested = 1;
    else if (place.location.at)
        add_name(names, place.location);
}

static void look_at_graph(struct message graph, struct names *names, unsigned depth);

/* Constants of the attribute, and graphs: branches of If, bodies of Loop and Scan. */
static void look_at_attribute(struct message attribute, struct names *names, unsigned depth) {
    struct member value;
    while (take(&attribute, &value)) {
        if (value.place == VALUE_TENSOR || value.place == TENSORS)
            look_at_tensor(value.bytes, names, depth);
        if ((value.place == VALUE_GRAPH || value.place == GRAPHS) && depth < DEEPEST)
            look_at_graph(value.bytes, names, depth + 1);
    }
}

static void look_at_graph(struct message graph, struct names *names, unsigned depth) {
    struct member part, attribute;
    while (take(&graph, &part)) {
        if (part.place == INITIALIZER)
            look_at_tensor(part.bytes, names, depth);
        while (part.place == NODE && take(&part.bytes, &attribute)) {
            if (attribute.place == ATTRIBUTE)
                look_at_attribute(attribute.bytes, names, depth);
        }
    }
}

static struct names names_in(const void *model, size_t bytes) {
    struct names names = {0};
    struct message whole = {model, (const uint8_t *)model + (model ? bytes : 0)};
    struct member graph;
    while (take(&whole, &graph)) {
        if (graph.place == GRAPH)
            look_at_graph(graph.bytes, &names, 0);
    }
    return names;
}

int has_external(const void *model, size_t bytes) {
    struct names names = names_in(model, bytes);
    free(names.list);
    return names.count > 0 || names.nested;
}

int has_nested_external(const void *model, size_t bytes) {
    struct names names = names_in(model, bytes);
    free(names.list);
    return names.nested;
}

/* Room for so many more bytes; NULL if there is no memory. */
uint8_t *more(struct content *content, uint64_t bytes) {
    if (bytes > SIZE_MAX / 2 - content->bytes)
        return NULL;
    if (content->bytes + bytes > content->capacity) {
        /* Half as much again, so that many small parts are not copied as often. */
        size_t capacity = content->bytes + bytes + content->bytes / 2;
        uint8_t *larger = realloc(content->at, capacity);
        if (!larger)
            return NULL;
        content->at = larger;
        content->capacity = capacity;
    }
    content->bytes += bytes;
    return content->at + content->bytes - bytes;
}

/* Reads as many bytes as there were; 0 if there are fewer. */
int read_all(int file, uint8_t *to, uint64_t bytes) {
    while (bytes > 0) {
        ssize_t got = read(file, to, bytes < 1 << 30 ? bytes : 1 << 30);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        to += got;
        bytes -= (uint64_t)got;
    }
    return 1;
}

/* Adds the file, or that it cannot be read; 0 if there is no memory. */
static int add_file(struct content *content, const char *folder, const char *name) {
    char path[2 * LONGEST_NAME + 2];
    struct stat about;
    snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
    int file = is_below(name) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    int there = file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode);
    struct external_file head = {strlen(there ? name : path) + 1, there ? (uint64_t)about.st_size : NO_FILE};
    uint64_t bytes = there ? head.bytes : 0;
    uint8_t *to = more(content, sizeof head + head.name_bytes + bytes);
    if (to) {
        memcpy(to + sizeof head, there ? name : path, head.name_bytes);
        /* One that has become shorter meanwhile is none. */
        if (there && !read_all(file, to + sizeof head + head.name_bytes, bytes)) {
            content->bytes -= bytes;
            head.bytes = NO_FILE;
        }
        memcpy(to, &head, sizeof head);
    }
    if (file >= 0)
        close(file);
    return to != NULL;
}

/* Where the program says that the files are; empty: in the present folder. 0 if it cannot be asked. */
int folder_of(const OrtSessionOptions *options, char *folder, size_t size) {
    const OrtApiBase *base = OrtGetApiBase();
    const OrtApi *api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    int has = 0;
    *folder = 0;
    if (!options || !api)
        return api != NULL;
    OrtStatus *status = api->HasSessionConfigEntry(options, EXTERNAL_FOLDER, &has);
    if (!status && has)
        status = api->GetSessionConfigEntry(options, EXTERNAL_FOLDER, folder, &size);
    if (status)
        api->ReleaseStatus(status);
    return !status;
}

/* What is sent where the files cannot even be looked for. */
static const struct {
    struct external_content content;
    struct external_file file;
    char name[16];
} nothing = {{sizeof nothing}, {sizeof nothing.name, NO_FILE}, "(no memory)"};

/* The files that the model's main graph names, and their content; NULL: none. */
static const void *read_external(const void *model, size_t bytes, const OrtSessionOptions *options) {
    struct names names = names_in(model, bytes);
    struct content content = {0};
    char folder[LONGEST_NAME], name[LONGEST_NAME];
    if (names.count == 0 && !names.failed)
        return NULL;
    int fine = !names.failed && folder_of(options, folder, sizeof folder) && more(&content, sizeof(struct external_content));
    for (size_t n = 0; fine && n < names.count; n++) {
        snprintf(name, sizeof name, "%.*s", (int)(names.list[n].end - names.list[n].at), (const char *)names.list[n].at);
        fine = add_file(&content, folder, name);
    }
    free(names.list);
    if (!fine) {
        free(content.at);
        return &nothing;
    }
    memcpy(content.at, &(struct external_content){content.bytes}, sizeof(struct external_content));
    return content.at;
}

int has_files(const void *model, size_t bytes, const OrtSessionOptions *options) {
    return wants_files(options) || saves_of(options) || has_external(model, bytes);
}

OrtStatus *session_of(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, OrtSession **out) {
    if (wants_files(options))
        return session_with_files(env, model, bytes, options, out);
    if (has_nested_external(model, bytes))
        return session_of_nested(env, model, bytes, options, out);
    const struct external_content *external = read_external(model, bytes, options);
    OrtStatus *status = aviary_onnxruntime_create_session(env, model, bytes, options, external, external ? external->bytes : 0,
                                                          saves_of(options), out);
    if (external != &nothing.content)
        free((void *)(uintptr_t)external);
    return status;
}
