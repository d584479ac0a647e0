#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "object.h"
#include "state.h"

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
    b->data = memory_new(bytes);
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
    if (b && !b->wrapped)
        memory_end(b->data, b->bytes);
    free(b);
    return found ? TA_OK : TA_INVALID_BUFFER;
}

ta_status ta_buffer_wrap(ta_device device, void *host, size_t bytes, ta_buffer *buffer) {
    if (!object_check(device, KIND_DEVICE))
        return TA_INVALID_DEVICE;
    if (!host || !bytes || !buffer)
        return TA_INVALID_VALUE;
    struct ta_buffer_st *b = object_new(KIND_BUFFER, sizeof *b);
    if (!b)
        return TA_OUT_OF_MEMORY;
    b->device = device;
    b->bytes = bytes;
    b->data = host;
    b->wrapped = true;
    *buffer = b;
    return TA_OK;
}

size_t ta_buffer_evictable(ta_buffer buffer) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    return b && !b->wrapped && !b->mapped ? b->bytes : 0;
}

int ta_buffer_equals(ta_buffer buffer, const void *content, size_t bytes) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    return b && bytes == b->bytes && memcmp(content, b->data, bytes) == 0;
}

int ta_buffer_evict(ta_buffer buffer, void *to, size_t bytes) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b || bytes != b->bytes)
        return 1;
    if (to)
        memcpy(to, b->data, bytes);
    memory_leave(b->data, bytes);
    return 0;
}

int ta_buffer_return(ta_buffer buffer, const void *from, size_t bytes) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b || bytes != b->bytes || !memory_return(b->data, bytes))
        return 1;
    memcpy(b->data, from, bytes);
    return 0;
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

ta_status ta_buffer_device(ta_buffer buffer, ta_device *device) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    if (!device)
        return TA_INVALID_VALUE;
    *device = b->device;
    return TA_OK;
}

ta_status ta_buffer_bytes(ta_buffer buffer, size_t *bytes) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    if (!bytes)
        return TA_INVALID_VALUE;
    *bytes = b->bytes;
    return TA_OK;
}

ta_status ta_buffer_set(ta_buffer buffer, size_t offset, uint8_t value, int32_t wait) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    (void)wait;
    if (!b)
        return TA_INVALID_BUFFER;
    if (!inside(b, offset, 1))
        return TA_INVALID_VALUE;
    b->data[offset] = value;
    return TA_OK;
}

ta_status ta_measure(const void *value, size_t bytes, size_t *answer) {
    struct ta_buffer_st *b = NULL;
    size_t sum = 0;
    if (!value || !answer)
        return TA_INVALID_VALUE;
    if (bytes == sizeof(ta_buffer))
        b = object_check(*(ta_buffer const *)value, KIND_BUFFER);
    for (size_t i = 0; i < bytes; i++)
        sum += ((const unsigned char *)value)[i];
    *answer = b ? b->bytes : sum;
    return TA_OK;
}

ta_status ta_buffer_tag_set(ta_buffer buffer, void *tag) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    b->tag = tag;
    return TA_OK;
}

void *ta_buffer_address(ta_buffer buffer) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    return b ? b->data : NULL;
}

uint64_t ta_buffer_place(ta_buffer buffer) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    const char *name = getenv("TESTAPI_PLACES");
    FILE *file = b && name ? fopen(name, "re") : NULL;
    char digits[24] = "";
    if (file) {
        if (!fgets(digits, sizeof digits, file))
            digits[0] = 0;
        fclose(file);
    }
    return b ? b->bytes + strtoull(digits, NULL, 10) : 0;
}

ta_status ta_buffer_sum_at(ta_buffer buffer, const void *address, size_t bytes, uint64_t *sum) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    uintptr_t offset = (uintptr_t)address - (uintptr_t)b->data;
    if (!sum || (uintptr_t)address < (uintptr_t)b->data || !inside(b, offset, bytes))
        return TA_INVALID_VALUE;
    *sum = 0;
    for (size_t i = 0; i < bytes; i++)
        *sum += b->data[offset + i];
    return TA_OK;
}

ta_status ta_buffer_touch(ta_buffer buffer, const void *next) {
    if (!object_check(buffer, KIND_BUFFER))
        return TA_INVALID_BUFFER;
    return next ? *(const ta_status *)next : TA_OK;
}

void *ta_buffer_tag(ta_buffer buffer) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    return b ? b->tag : NULL;
}

static void report(ta_status *error, ta_status status) {
    if (error)
        *error = status;
}

void *ta_buffer_map(ta_buffer buffer, uint32_t flags, size_t offset, size_t bytes, ta_status *error) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b) {
        report(error, TA_INVALID_BUFFER);
        return NULL;
    }
    if (!flags || !bytes || !inside(b, offset, bytes) || b->mapped) {
        report(error, TA_INVALID_VALUE);
        return NULL;
    }
    b->mapped = b->data + offset;
    report(error, TA_OK);
    return b->mapped;
}

ta_status ta_buffer_unmap(ta_buffer buffer, void *mapped) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    if (!b)
        return TA_INVALID_BUFFER;
    if (!mapped || mapped != b->mapped)
        return TA_INVALID_VALUE;
    b->mapped = NULL;
    return TA_OK;
}

void *ta_shared_alloc(size_t bytes) {
    return bytes ? calloc(1, bytes) : NULL;
}

uint8_t *ta_shared_copy(const uint8_t *from, size_t bytes) {
    uint8_t *to = from && bytes ? malloc(bytes) : NULL;
    return to ? memcpy(to, from, bytes) : NULL;
}

void ta_shared_free(void *p) {
    free(p);
}

ta_status ta_shared_fill(uint8_t *p, size_t bytes, uint8_t value) {
    if (!p)
        return TA_INVALID_VALUE;
    memset(p, value, bytes);
    return TA_OK;
}

uint64_t ta_shared_sum(const uint8_t *p, size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; p && i < bytes; i++)
        sum += p[i];
    return sum;
}

static ta_status copy_one(const ta_copy *copy, size_t *copied) {
    struct ta_buffer_st *from = object_check(copy->source, KIND_BUFFER);
    struct ta_buffer_st *to = object_check(copy->destination, KIND_BUFFER);
    if (!from || !to)
        return TA_INVALID_BUFFER;
    if (copy->label && strcmp(copy->label, "refuse") == 0)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < copy->region_count; i++) {
        const ta_region *r = &copy->regions[i];
        if (!inside(from, r->offset, r->bytes) || !inside(to, r->offset, r->bytes))
            return TA_INVALID_VALUE;
        memmove(to->data + r->offset, from->data + r->offset, r->bytes);
        *copied += r->bytes;
    }
    return TA_OK;
}

ta_status ta_copy_run(const ta_copy *copy, size_t *bytes_copied) {
    return ta_copy_many(1, copy, bytes_copied);
}

ta_status ta_copy_many(uint32_t count, const ta_copy *copies, size_t *bytes_copied) {
    size_t copied = 0;
    ta_status status = TA_OK;
    if (count && !copies)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < count && status == TA_OK; i++)
        status = copy_one(&copies[i], &copied);
    if (bytes_copied && status == TA_OK)
        *bytes_copied = copied;
    return status;
}
