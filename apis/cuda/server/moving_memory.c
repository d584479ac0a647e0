/* The state that belongs to no object: device memory at its addresses and what is in it, reservations, page-locked memory, which
 * contexts have printed. Contexts are there when it is loaded. */
#include "moving.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* "AVCUDA" and the form's version. */
static const uint64_t MAGIC = 0x01414455435641;

/* The head: the counts, then as many entries of each kind, in this order. */
struct counts {
    uint64_t magic, placed, reserved, registered, printed;
};

struct lists {
    struct cuda_placed *placed;
    struct cuda_reserved *reserved;
    struct cuda_registered *registered;
    uint64_t printed[CUDA_MOST_CONTEXTS];
    size_t placed_count, reserved_count, registered_count, printed_count;
};

static struct cuda_moved_output output;
static struct cuda_moved_input input;

static void drop_lists(struct lists *lists) {
    free(lists->placed);
    free(lists->reserved);
    free(lists->registered);
}

static void list_printed(struct lists *lists) {
    CUcontext contexts[CUDA_MOST_CONTEXTS];
    size_t count = cuda_live_contexts(contexts, CUDA_MOST_CONTEXTS);
    for (size_t i = 0; i < count && i < CUDA_MOST_CONTEXTS; i++) {
        int prints = 0;
        if (cuda_enter_context(contexts[i])) {
            prints = cuda_kernels_print();
            cuda_leave_context();
        }
        if (prints)
            lists->printed[lists->printed_count++] = aviary_object_id(contexts[i]);
    }
}

/* Memory of a device on which the application has no context any longer has ended natively: nothing is copied. */
static int put_contents(struct lists *lists, struct cuda_moved_output *to) {
    for (size_t i = 0; i < lists->placed_count; i++) {
        struct cuda_placed *entry = &lists->placed[i];
        struct cuda_moved_part part = {cuda_context_on(entry->device), entry->base, entry->bytes};
        if (entry->asked || !part.context)
            continue;
        entry->has_content = 1;
        if (!cuda_put_part(to, part))
            return 0;
    }
    return 1;
}

static int describe_lists(struct lists *lists, struct cuda_moved_output *to) {
    if (!cuda_list_placed(&lists->placed, &lists->placed_count) || !cuda_list_reserved(&lists->reserved, &lists->reserved_count)
        || !cuda_list_registered(&lists->registered, &lists->registered_count))
        return 0;
    list_printed(lists);
    if (!put_contents(lists, to))
        return 0;
    struct counts counts = {MAGIC, lists->placed_count, lists->reserved_count, lists->registered_count, lists->printed_count};
    return cuda_put_head(to, &counts, sizeof counts)
           && cuda_put_head(to, lists->placed, lists->placed_count * sizeof *lists->placed)
           && cuda_put_head(to, lists->reserved, lists->reserved_count * sizeof *lists->reserved)
           && cuda_put_head(to, lists->registered, lists->registered_count * sizeof *lists->registered)
           && cuda_put_head(to, lists->printed, lists->printed_count * sizeof *lists->printed);
}

static int describe(struct cuda_moved_output *to, void *unused) {
    struct lists lists = {0};
    (void)unused;
    int described = describe_lists(&lists, to);
    drop_lists(&lists);
    return described;
}

int64_t cuda_save_session(uint64_t offset, void *to, size_t bytes) {
    return cuda_write_moved(&output, offset, to, bytes, describe, NULL);
}

/* The next `count` entries of so many bytes; NULL: the head has no more. A copy, which is aligned, for the caller to free. */
static void *next_entries(const struct cuda_moved_input *from, size_t *at, uint64_t count, size_t bytes) {
    if (count > (from->head_bytes - *at) / bytes)
        return NULL;
    void *entries = malloc(count ? count * bytes : 1);
    if (entries) {
        memcpy(entries, from->head + *at, count * bytes);
        *at += count * bytes;
    }
    return entries;
}

static CUresult place_parts(struct cuda_moved_input *from, const struct cuda_placed *placed, size_t count) {
    CUresult status = cuda_place_again(placed, count);
    from->parts = calloc(count ? count : 1, sizeof *from->parts);
    if (status != CUDA_SUCCESS || !from->parts)
        return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
    for (size_t i = 0; i < count; i++)
        if (!placed[i].asked && placed[i].has_content)
            from->parts[from->part_count++] =
                (struct cuda_moved_part){cuda_context_on(placed[i].device), placed[i].base, placed[i].bytes};
    return CUDA_SUCCESS;
}

static int make_again(struct cuda_moved_input *from, void *unused) {
    struct counts counts = {0};
    size_t at = sizeof(uint64_t);
    (void)unused;
    if (from->head_bytes - at < sizeof counts)
        return 1;
    memcpy(&counts, from->head + at, sizeof counts);
    at += sizeof counts;
    struct cuda_placed *placed = next_entries(from, &at, counts.placed, sizeof *placed);
    struct cuda_reserved *reserved = placed ? next_entries(from, &at, counts.reserved, sizeof *reserved) : NULL;
    struct cuda_registered *registered = reserved ? next_entries(from, &at, counts.registered, sizeof *registered) : NULL;
    uint64_t *printed = registered ? next_entries(from, &at, counts.printed, sizeof *printed) : NULL;
    int made = printed && counts.magic == MAGIC && at == from->head_bytes
               && place_parts(from, placed, counts.placed) == CUDA_SUCCESS
               && cuda_reserve_again(reserved, counts.reserved) == CUDA_SUCCESS
               && cuda_register_again(registered, counts.registered) == CUDA_SUCCESS;
    cuda_forget_logs();
    for (uint64_t i = 0; made && i < counts.printed; i++)
        cuda_set_printed(aviary_object(printed[i]));
    free(placed);
    free(reserved);
    free(registered);
    free(printed);
    return !made;
}

int cuda_restore_session(uint64_t offset, const void *from, size_t bytes) {
    return cuda_read_moved(&input, offset, from, bytes, make_again, NULL);
}
