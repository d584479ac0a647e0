/* The state that belongs to no object: device memory at its addresses and what is in it, reservations, page-locked memory, which
 * contexts have printed. Contexts are there when it is loaded. */
#include "moving.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* "AVCUDA" and the form's version. */
static const uint64_t MAGIC = 0x05414455435641;

/* The head: the counts, with the bytes of contents that are no part of the pieces, then as many entries of each kind, in this order. */
struct counts {
    uint64_t magic, placed, reserved, adopted, registered, printed, beside;
};

struct lists {
    struct cuda_placed *placed;
    struct cuda_reserved *reserved;
    struct cuda_adopted *adopted;
    struct cuda_registered *registered;
    uint64_t printed[CUDA_MOST_CONTEXTS];
    size_t placed_count, reserved_count, adopted_count, registered_count, printed_count;
};

static struct cuda_moved_output output;
static struct cuda_moved_input input;

static void drop_lists(struct lists *lists) {
    free(lists->placed);
    free(lists->reserved);
    free(lists->adopted);
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

/* A chunk on a device on which the application has a context. */
static int has_content(const struct cuda_placed *entry) {
    return !entry->asked && cuda_context_on(entry->device);
}

/* Memory of a device on which the application has no context any longer has ended natively: nothing of it passes on. */
static int put_contents(struct lists *lists, struct cuda_moved_output *to) {
    for (size_t i = 0; i < lists->placed_count; i++) {
        struct cuda_placed *entry = &lists->placed[i];
        struct cuda_moved_part part = {cuda_context_on(entry->device), entry->base, entry->bytes, 0};
        if (!has_content(entry))
            continue;
        int handed = cuda_hand_over_placed(entry), copied = !handed || aviary_must_copy();
        entry->content = !handed ? CUDA_CONTENT_COPIED : copied ? CUDA_CONTENT_BOTH : CUDA_CONTENT_HANDED;
        if (copied && !cuda_put_part(to, part))
            return 0;
    }
    return 1;
}

uint64_t cuda_contents_bytes(void) {
    struct cuda_placed *placed = NULL;
    size_t count = 0;
    uint64_t bytes = 0;
    if (!cuda_list_placed(&placed, &count))
        return 0;
    for (size_t i = 0; i < count; i++)
        bytes += has_content(&placed[i]) ? placed[i].bytes : 0;
    free(placed);
    return bytes;
}

/* Copies all parts at once, where the state has memory for that; *beside: how many bytes. 0: that failed. */
static int put_beside(struct cuda_moved_output *to, uint64_t *beside) {
    *beside = cuda_bytes_of_parts(to->parts, to->part_count);
    char *memory = *beside ? aviary_contents_to_write(*beside) : NULL;
    if (!memory) {
        *beside = 0;
        return 1;
    }
    int copied = cuda_copy_out(to->parts, to->part_count, memory, NULL) == CUDA_SUCCESS;
    cuda_drop_copy_buffers();
    to->part_count = 0;
    return copied;
}

static int describe_lists(struct lists *lists, struct cuda_moved_output *to) {
    if (!cuda_list_placed(&lists->placed, &lists->placed_count) || !cuda_list_reserved(&lists->reserved, &lists->reserved_count)
        || !cuda_list_adopted(&lists->adopted, &lists->adopted_count)
        || !cuda_list_registered(&lists->registered, &lists->registered_count))
        return 0;
    list_printed(lists);
    uint64_t beside = 0;
    if (!put_contents(lists, to) || !put_beside(to, &beside))
        return 0;
    struct counts counts = {MAGIC, lists->placed_count, lists->reserved_count, lists->adopted_count, lists->registered_count,
                            lists->printed_count, beside};
    return cuda_put_head(to, &counts, sizeof counts)
           && cuda_put_head(to, lists->placed, lists->placed_count * sizeof *lists->placed)
           && cuda_put_head(to, lists->reserved, lists->reserved_count * sizeof *lists->reserved)
           && cuda_put_head(to, lists->adopted, lists->adopted_count * sizeof *lists->adopted)
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

static int is_in_state(const struct cuda_placed *entry) {
    return !entry->asked && (entry->content == CUDA_CONTENT_COPIED || entry->content == CUDA_CONTENT_BOTH);
}

static CUresult place_parts(struct cuda_moved_input *from, struct cuda_placed *placed, size_t count) {
    from->parts = calloc(count ? count : 1, sizeof *from->parts);
    if (!from->parts)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (is_in_state(&placed[i]))
            from->parts[from->part_count++] =
                (struct cuda_moved_part){cuda_context_on(placed[i].device), placed[i].base, placed[i].bytes, 0};
    CUresult status = cuda_place_again(placed, count);
    size_t part = 0;
    for (size_t i = 0; i < count && part < from->part_count; i++)
        if (!placed[i].asked && placed[i].base == from->parts[part].pointer)
            from->parts[part++].is_there = placed[i].content == CUDA_CONTENT_HANDED;
    return status;
}

/* Contents that the state has beside the pieces, into the parts; 0: the state has none. */
static int take_beside(struct cuda_moved_input *from, uint64_t beside) {
    int is_there = 1;
    for (size_t i = 0; i < from->part_count; i++)
        is_there &= from->parts[i].is_there;
    if (!beside || is_there) {
        from->part_count = beside ? 0 : from->part_count;
        return 1;
    }
    const char *memory = beside == cuda_bytes_of_parts(from->parts, from->part_count) ? aviary_contents_to_read(beside) : NULL;
    int copied = memory && cuda_copy_in(from->parts, from->part_count, memory, NULL, NULL) == CUDA_SUCCESS;
    cuda_drop_copy_buffers();
    from->part_count = 0;
    return copied;
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
    struct cuda_adopted *adopted = reserved ? next_entries(from, &at, counts.adopted, sizeof *adopted) : NULL;
    struct cuda_registered *registered = adopted ? next_entries(from, &at, counts.registered, sizeof *registered) : NULL;
    uint64_t *printed = registered ? next_entries(from, &at, counts.printed, sizeof *printed) : NULL;
    int made = printed && counts.magic == MAGIC && at == from->head_bytes
               && place_parts(from, placed, counts.placed) == CUDA_SUCCESS && take_beside(from, counts.beside)
               && cuda_reserve_again(reserved, counts.reserved) == CUDA_SUCCESS
               && cuda_adopt_again(adopted, counts.adopted) == CUDA_SUCCESS
               && cuda_register_again(registered, counts.registered) == CUDA_SUCCESS;
    cuda_forget_logs();
    for (uint64_t i = 0; made && i < counts.printed; i++)
        cuda_set_printed(aviary_object(printed[i]));
    free(placed);
    free(reserved);
    free(adopted);
    free(registered);
    free(printed);
    return !made;
}

int cuda_restore_session(uint64_t offset, const void *from, size_t bytes) {
    return cuda_read_moved(&input, offset, from, bytes, make_again, NULL);
}
