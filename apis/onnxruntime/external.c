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

enum { GRAPH = 7, INITIALIZER = 5, EXTERNAL_DATA = 13, DATA_LOCATION = 14, KEY = 1, VALUE = 2 };
enum { NUMBER = 0, FIXED_8 = 1, BYTES = 2, FIXED_4 = 5 };
enum { LONGEST_NAME = 4096 };

/* What is left of a message of protobuf. */
struct message {
    const uint8_t *at, *end;
};

/* A member of one: a number, or bytes. */
struct member {
    uint64_t place, number;
    struct message bytes;
};

static int read_number(struct message *from, uint64_t *number) {
    *number = 0;
    for (unsigned shift = 0; shift < 64 && from->at < from->end; shift += 7) {
        uint8_t byte = *from->at++;
        *number |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return 1;
    }
    return 0;
}

/* Takes the next member; 0 at the end, and where there is none. */
static int take(struct message *from, struct member *member) {
    uint64_t tag, bytes;
    *member = (struct member){0};
    if (!read_number(from, &tag))
        return 0;
    member->place = tag >> 3;
    switch (tag & 7) {
    case NUMBER:
        return read_number(from, &member->number);
    case FIXED_8:
        bytes = 8;
        break;
    case FIXED_4:
        bytes = 4;
        break;
    case BYTES:
        if (!read_number(from, &bytes))
            return 0;
        break;
    default:
        return 0;
    }
    if (bytes > (uint64_t)(from->end - from->at))
        return 0;
    member->bytes = (struct message){from->at, from->at + bytes};
    from->at += bytes;
    return 1;
}

/* The names of files, each once. */
struct names {
    struct message *list;
    size_t count, capacity;
    int failed;
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

static int is_location(struct message key) {
    return key.end - key.at == 8 && !memcmp(key.at, "location", 8);
}

static void look_at_tensor(struct message tensor, struct names *names) {
    struct member member, part;
    struct message location = {0};
    int external = 0;
    while (take(&tensor, &member)) {
        if (member.place == DATA_LOCATION)
            external = member.number == 1;
        if (member.place != EXTERNAL_DATA)
            continue;
        struct message key = {0}, value = {0};
        while (take(&member.bytes, &part)) {
            if (part.place == KEY)
                key = part.bytes;
            if (part.place == VALUE)
                value = part.bytes;
        }
        if (is_location(key))
            location = value;
    }
    if (external && location.at < location.end)
        add_name(names, location);
}

static struct names names_in(const void *model, size_t bytes) {
    struct names names = {0};
    struct message whole = {model, (const uint8_t *)model + (model ? bytes : 0)};
    struct member graph, initializer;
    while (take(&whole, &graph)) {
        while (graph.place == GRAPH && take(&graph.bytes, &initializer)) {
            if (initializer.place == INITIALIZER)
                look_at_tensor(initializer.bytes, &names);
        }
    }
    return names;
}

int has_external(const void *model, size_t bytes) {
    struct names names = names_in(model, bytes);
    free(names.list);
    return names.count > 0;
}

/* A name leads to nothing outside of the model's folder, as the library asks for. */
static int is_below(const char *name) {
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (!strncmp(part, "..", 2) && (part[2] == '/' || !part[2]))
            return 0;
    }
    return *name != '/';
}

/* The content to send, as it grows. */
struct content {
    uint8_t *at;
    size_t bytes;
};

/* Room for so many more bytes; NULL if there is no memory. */
static uint8_t *more(struct content *content, uint64_t bytes) {
    uint8_t *larger = bytes < SIZE_MAX - content->bytes ? realloc(content->at, content->bytes + bytes) : NULL;
    if (!larger)
        return NULL;
    content->at = larger;
    content->bytes += bytes;
    return larger + content->bytes - bytes;
}

/* Reads as many bytes as there were; 0 if there are fewer. */
static int read_all(int file, uint8_t *to, uint64_t bytes) {
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
static int folder_of(const OrtSessionOptions *options, char *folder, size_t size) {
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

const void *read_external(const void *model, size_t bytes, const OrtSessionOptions *options) {
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

size_t external_bytes(const void *external) {
    return external ? ((const struct external_content *)external)->bytes : 0;
}

void free_external(const void *external) {
    if (external != &nothing)
        free((void *)(uintptr_t)external);
}
