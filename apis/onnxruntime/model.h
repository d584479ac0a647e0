/* Models as the guest reads them: messages of protobuf, with the members that say what is in files. */
#ifndef ONNXRUNTIME_MODEL_H
#define ONNXRUNTIME_MODEL_H

#include <stdint.h>
#include <string.h>

/* Of a model; a graph; a node; an attribute; a tensor; an entry of a tensor's external data. */
enum { GRAPH = 7 };
enum { NODE = 1, INITIALIZER = 5 };
enum { ATTRIBUTE = 5 };
enum { VALUE_TENSOR = 5, VALUE_GRAPH = 6, TENSORS = 10, GRAPHS = 11 };
enum { RAW_DATA = 9, EXTERNAL_DATA = 13, DATA_LOCATION = 14 };
enum { KEY = 1, VALUE = 2 };
/* How a member is written. */
enum { NUMBER = 0, FIXED_8 = 1, BYTES = 2, FIXED_4 = 5 };
/* Graphs within graphs that are looked at; the library reads fewer. */
enum { DEEPEST = 64 };

/* What is left of a message. */
struct message {
    const uint8_t *at, *end;
};

/* A member of one: a number, or bytes. */
struct member {
    uint64_t place, number;
    uint32_t kind;
    struct message bytes;
};

static inline int read_number(struct message *from, uint64_t *number) {
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
static inline int take(struct message *from, struct member *member) {
    uint64_t tag, bytes;
    *member = (struct member){0};
    if (!read_number(from, &tag))
        return 0;
    member->place = tag >> 3;
    member->kind = tag & 7;
    switch (member->kind) {
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

static inline int is_text(struct message bytes, const char *text) {
    size_t length = strlen(text);
    return (size_t)(bytes.end - bytes.at) == length && !memcmp(bytes.at, text, length);
}

/* Where a tensor's data is: in the file `location` (none: NULL), as texts of numbers. */
struct place {
    struct message location, offset, length;
};

static inline struct place place_of(struct message tensor) {
    struct place place = {0};
    struct member member, part;
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
        if (is_text(key, "location"))
            place.location = value;
        if (is_text(key, "offset"))
            place.offset = value;
        if (is_text(key, "length"))
            place.length = value;
    }
    return external && place.location.at < place.location.end ? place : (struct place){0};
}

#endif
