/* A state as a row of bytes: a head that describes it, then the content of device memory, without a second copy of that. The
 * runtime asks for pieces in order, and gives them back in order in another process. */
#include "moving.h"
#include <stdlib.h>
#include <string.h>

/* The head begins with its own length in bytes. */
enum { LENGTH_BYTES = sizeof(uint64_t) };
/* The longest head that is read: a snapshot could say anything. */
#define MOST_HEAD_BYTES ((uint64_t)256 << 20)

static int grow(void **array, size_t old_bytes, size_t added) {
    void *larger = realloc(*array, old_bytes + added);
    if (larger)
        *array = larger;
    return larger != NULL;
}

static void drop_output(struct cuda_moved_output *output) {
    free(output->head);
    free(output->parts);
    *output = (struct cuda_moved_output){0};
}

int cuda_put_head(struct cuda_moved_output *output, const void *bytes, size_t count) {
    void *head = output->head;
    size_t before = output->head ? output->head_bytes : 0;
    uint64_t whole = (before ? before : LENGTH_BYTES) + count;
    if (!grow(&head, before, (size_t)whole - before)) {
        drop_output(output);
        return 0;
    }
    output->head = head;
    output->head_bytes = (size_t)whole;
    memcpy(output->head, &whole, sizeof whole);
    if (count)
        memcpy(output->head + whole - count, bytes, count);
    return 1;
}

int cuda_put_part(struct cuda_moved_output *output, struct cuda_moved_part part) {
    void *parts = output->parts;
    if (!grow(&parts, output->part_count * sizeof part, sizeof part)) {
        drop_output(output);
        return 0;
    }
    output->parts = parts;
    output->parts[output->part_count++] = part;
    return 1;
}

/* Copies the bytes that begin `offset` bytes behind the begin of the first part; how many that were, negative: that failed. */
static int64_t copy_parts(const struct cuda_moved_part *parts, size_t count, uint64_t offset, char *host, size_t bytes, int writes) {
    size_t done = 0;
    for (size_t i = 0; i < count && done < bytes; i++) {
        const struct cuda_moved_part *part = &parts[i];
        if (offset >= part->bytes) {
            offset -= part->bytes;
            continue;
        }
        size_t here = part->bytes - offset < bytes - done ? (size_t)(part->bytes - offset) : bytes - done;
        if (part->is_there) {
            done += here;
            offset = 0;
            continue;
        }
        if (!cuda_enter_context(part->context))
            return -1;
        CUresult status = writes ? cuMemcpyHtoD_v2(part->pointer + offset, host + done, here)
                                 : cuMemcpyDtoH_v2(host + done, part->pointer + offset, here);
        cuda_leave_context();
        if (status != CUDA_SUCCESS)
            return -1;
        done += here;
        offset = 0;
    }
    return (int64_t)done;
}

static int64_t write_piece(const struct cuda_moved_output *output, uint64_t offset, void *to, size_t bytes) {
    size_t from_head = 0;
    if (offset < output->head_bytes) {
        from_head = output->head_bytes - (size_t)offset < bytes ? output->head_bytes - (size_t)offset : bytes;
        memcpy(to, output->head + offset, from_head);
        offset = output->head_bytes;
    }
    int64_t copied = copy_parts(output->parts, output->part_count, offset - output->head_bytes, (char *)to + from_head,
                                bytes - from_head, 0);
    return copied < 0 ? -1 : (int64_t)from_head + copied;
}

int64_t cuda_write_moved(struct cuda_moved_output *output, uint64_t offset, void *to, size_t bytes, cuda_moved_describe describe, void *data) {
    if (offset == 0)
        drop_output(output);
    int64_t written = offset != 0 || describe(output, data) ? write_piece(output, offset, to, bytes) : -1;
    if (written < (int64_t)bytes)
        drop_output(output);
    return written;
}

static void drop_input(struct cuda_moved_input *input) {
    free(input->head);
    free(input->parts);
    *input = (struct cuda_moved_input){0};
}

/* Takes what belongs to the head; how many bytes that were, negative: it is none. */
static int64_t take_head(struct cuda_moved_input *input, uint64_t offset, const char *from, size_t bytes) {
    uint64_t whole = 0;
    void *head = input->head;
    if (input->is_ready)
        return 0;
    if (offset != input->head_bytes)
        return -1;
    if (input->head_bytes >= LENGTH_BYTES)
        memcpy(&whole, input->head, sizeof whole);
    else if (!input->head_bytes && bytes >= LENGTH_BYTES)
        memcpy(&whole, from, sizeof whole);
    if (whole < LENGTH_BYTES || whole > MOST_HEAD_BYTES || whole < input->head_bytes)
        return -1;
    size_t taken = whole - input->head_bytes < bytes ? (size_t)(whole - input->head_bytes) : bytes;
    if (!grow(&head, input->head_bytes, taken))
        return -1;
    input->head = head;
    memcpy(input->head + input->head_bytes, from, taken);
    input->head_bytes += taken;
    return input->head_bytes == whole ? (int64_t)taken : (int64_t)bytes;
}

static int head_is_whole(const struct cuda_moved_input *input) {
    uint64_t whole = 0;
    if (input->head_bytes < LENGTH_BYTES)
        return 0;
    memcpy(&whole, input->head, sizeof whole);
    return input->head_bytes == whole;
}

int cuda_read_moved(struct cuda_moved_input *input, uint64_t offset, const void *from, size_t bytes, cuda_moved_ready ready, void *data) {
    if (offset == 0)
        drop_input(input);
    int64_t taken = take_head(input, offset, from, bytes);
    if (taken < 0)
        return 1;
    if (!input->is_ready && head_is_whole(input)) {
        if (ready(input, data) != 0)
            return 1;
        input->is_ready = 1;
    }
    size_t left = bytes - (size_t)taken;
    if (!left)
        return 0;
    uint64_t at = offset + (uint64_t)taken - input->head_bytes;
    /* The driver reads from there only. */
    char *host = (char *)(uintptr_t)from + taken;
    return copy_parts(input->parts, input->part_count, at, host, left, 1) != (int64_t)left;
}
