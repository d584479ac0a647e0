/* Weights of nested graphs (branches of If, bodies of Loop and Scan) that are in files. The library takes files from memory for the main
 * graph alone, so that the guest puts those of nested graphs into the model itself. What it does not understand it copies. */
#include <aviary/guest.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "external.h"
#include "model.h"

enum { LONGEST = 4096 };

/* What a message is: of the main graph the nodes are looked at, of nested ones tensors, too. */
enum level { COPIED, MODEL, MAIN, MAIN_NODE, MAIN_ATTRIBUTE, NESTED, NESTED_NODE, NESTED_ATTRIBUTE, TENSOR };

/* What a member of such a message is. */
static enum level below(enum level level, const struct member *member) {
    const uint64_t place = member->place;
    if (member->kind != BYTES)
        return COPIED;
    switch (level) {
    case MODEL:
        return place == GRAPH ? MAIN : COPIED;
    case MAIN:
        return place == NODE ? MAIN_NODE : COPIED;
    case NESTED:
        return place == NODE ? NESTED_NODE : place == INITIALIZER ? TENSOR : COPIED;
    case MAIN_NODE:
        return place == ATTRIBUTE ? MAIN_ATTRIBUTE : COPIED;
    case NESTED_NODE:
        return place == ATTRIBUTE ? NESTED_ATTRIBUTE : COPIED;
    case NESTED_ATTRIBUTE:
        if (place == VALUE_TENSOR || place == TENSORS)
            return TENSOR;
        /* fall through */
    case MAIN_ATTRIBUTE:
        return place == VALUE_GRAPH || place == GRAPHS ? NESTED : COPIED;
    default:
        return COPIED;
    }
}

/* What goes wrong on the way: no memory, or a file that cannot be read. */
struct work {
    const char *folder;
    int no_memory;
    char unread[2 * LONGEST + 2];
};

static int put(struct content *to, const void *from, size_t bytes, struct work *work) {
    uint8_t *at = more(to, bytes);
    if (!at)
        work->no_memory = 1;
    else if (bytes)
        memcpy(at, from, bytes);
    return at != NULL;
}

static int put_number(struct content *to, uint64_t number, struct work *work) {
    uint8_t bytes[10];
    size_t count = 0;
    for (; number > 0x7f; number >>= 7)
        bytes[count++] = (uint8_t)(number | 0x80);
    bytes[count++] = (uint8_t)number;
    return put(to, bytes, count, work);
}

/* The beginning of a member of so many bytes. */
static int put_head(struct content *to, uint64_t place, uint64_t bytes, struct work *work) {
    return put_number(to, place << 3 | BYTES, work) && put_number(to, bytes, work);
}

/* The number that a text says; `none` if there is no text. */
static off_t number_of(struct message text, off_t none) {
    char digits[24];
    if (!text.at)
        return none;
    snprintf(digits, sizeof digits, "%.*s", (int)(text.end - text.at < 23 ? text.end - text.at : 23), (const char *)text.at);
    return (off_t)strtoll(digits, NULL, 10);
}

/* Adds that part of the file as the tensor's data. */
static int put_data(struct content *to, const struct place *place, struct work *work) {
    char name[LONGEST], path[sizeof work->unread];
    snprintf(name, sizeof name, "%.*s", (int)(place->location.end - place->location.at), (const char *)place->location.at);
    snprintf(path, sizeof path, "%s%s%s", work->folder, *work->folder ? "/" : "", name);
    int file = is_below(name) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const off_t end = file < 0 ? -1 : lseek(file, 0, SEEK_END), offset = number_of(place->offset, 0);
    const off_t bytes = number_of(place->length, end - offset);
    int fine = end >= 0 && offset >= 0 && bytes >= 0 && offset <= end && bytes <= end - offset && lseek(file, offset, SEEK_SET) == offset;
    uint8_t *at = fine && put_head(to, RAW_DATA, (uint64_t)bytes, work) ? more(to, (uint64_t)bytes) : NULL;
    if (fine && !at)
        work->no_memory = 1;
    else if (!fine || !read_all(file, at, (uint64_t)bytes))
        memcpy(work->unread, path, sizeof path);
    if (file >= 0)
        close(file);
    return at && !*work->unread;
}

static int rewrite_tensor(struct message from, struct content *to, struct work *work) {
    const struct place place = place_of(from);
    const uint8_t *start = from.at;
    struct member member;
    if (!place.location.at)
        return put(to, from.at, (size_t)(from.end - from.at), work);
    for (; take(&from, &member); start = from.at) {
        if (member.place != EXTERNAL_DATA && member.place != DATA_LOCATION && !put(to, start, (size_t)(from.at - start), work))
            return 0;
    }
    return put_data(to, &place, work);
}

/* Writes the message as it is, with the data of files in the tensors of nested graphs. */
static int rewrite(struct message from, enum level level, unsigned depth, struct content *to, struct work *work) {
    const uint8_t *start = from.at;
    struct member member;
    int fine = 1;
    for (; fine && take(&from, &member); start = from.at) {
        const enum level inner = depth < 4 * DEEPEST ? below(level, &member) : COPIED;
        struct content content = {0};
        if (inner == COPIED) {
            fine = put(to, start, (size_t)(from.at - start), work);
            continue;
        }
        fine = inner == TENSOR ? rewrite_tensor(member.bytes, &content, work) : rewrite(member.bytes, inner, depth + 1, &content, work);
        fine = fine && put_head(to, member.place, content.bytes, work) && put(to, content.at, content.bytes, work);
        free(content.at);
    }
    return fine && put(to, start, (size_t)(from.end - start), work);
}

OrtStatus *session_of_nested(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, OrtSession **out) {
    const OrtApiBase *base = OrtGetApiBase();
    const OrtApi *api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    char folder[LONGEST], text[2 * LONGEST + 128] = "weights of nested graphs could not be put into the model";
    struct work work = {.folder = folder};
    struct content content = {0};
    OrtStatus *status = NULL;
    if (!api)
        return made_status(1);
    if (!folder_of(options, folder, sizeof folder))
        return made_status(0);
    const struct message whole = {model, (const uint8_t *)model + bytes};
    /* One that still names files is damaged, and would come here again. */
    if (rewrite(whole, MODEL, 0, &content, &work) && !has_nested_external(content.at, content.bytes))
        status = api->CreateSessionFromArray(env, content.at, content.bytes, options, out);
    else {
        if (*work.unread)
            snprintf(text, sizeof text, "Data of a tensor of a nested graph should be stored in %.*s, which cannot be read", 2 * LONGEST, work.unread);
        status = api->CreateStatus(*work.unread ? ORT_INVALID_GRAPH : ORT_FAIL, text);
    }
    free(content.at);
    return status;
}
