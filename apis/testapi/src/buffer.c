#include <stdlib.h>
#include <string.h>

#include "object.h"

ta_status ta_buffer_create(ta_device device, size_t bytes, ta_buffer *buffer) {
    if (!object_check(device, KIND_DEVICE))
        return TA_INVALID_DEVICE;
    if (!bytes || !buffer)
        return TA_INVALID_VALUE;
    struct ta_buffer_st *b = object_new(KIND_BUFFER, sizeof *b);
    if (!b)
        return TA_OUT_OF_MEMORY;
    b->device = device;
    b->bytes = bytes;
    b->data = calloc(1, bytes);
    if (!b->data) {
        bool found;
        free(object_release(b, KIND_BUFFER, &found));
        return TA_OUT_OF_MEMORY;
    }
    *buffer = b;
    return TA_OK;
}

ta_status ta_buffer_destroy(ta_buffer buffer) {
    bool found;
    struct ta_buffer_st *b = object_release(buffer, KIND_BUFFER, &found);
    if (b)
        free(b->data);
    free(b);
    return found ? TA_OK : TA_INVALID_BUFFER;
}

static bool inside(const struct ta_buffer_st *b, size_t offset, size_t bytes) {
    return offset <= b->bytes && bytes <= b->bytes - offset;
}

ta_status ta_buffer_write(ta_buffer buffer, size_t offset, size_t bytes, const void *from) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    if (!from || !inside(b, offset, bytes))
        return TA_INVALID_VALUE;
    memcpy(b->data + offset, from, bytes);
    return TA_OK;
}

ta_status ta_buffer_read(ta_buffer buffer, size_t offset, size_t bytes, void *to) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    if (!to || !inside(b, offset, bytes))
        return TA_INVALID_VALUE;
    memcpy(to, b->data + offset, bytes);
    return TA_OK;
}

ta_status ta_buffer_fill(ta_buffer buffer, uint8_t value) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    memset(b->data, value, b->bytes);
    return TA_OK;
}
