/* Saves and restores what the library keeps beside objects. */
#include "state.h"

#include <string.h>

struct saved {
    uint64_t noops, reserved, last_work, units_runs, mark, baton, disorder, trail_length;
    int64_t level;
    uint64_t posts, boards;
    char told[sizeof library_told];
};

size_t ta_library_save(size_t offset, void *to, size_t capacity) {
    struct saved all = {
        .noops = library_noops,
        .reserved = library_reserved,
        .last_work = library_last_work,
        .units_runs = library_units_runs,
        .mark = library_mark,
        .baton = library_baton,
        .disorder = library_disorder,
        .trail_length = library_trail_length,
        .level = library_level,
        .posts = library_posts,
        .boards = library_boards,
    };
    memcpy(all.told, library_told, sizeof all.told);
    size_t trail = library_trail_length * sizeof *library_trail, done = 0;
    if (offset < sizeof all) {
        done = sizeof all - offset < capacity ? sizeof all - offset : capacity;
        memcpy(to, (const char *)&all + offset, done);
        offset += done;
    }
    if (offset < sizeof all || done == capacity)
        return done;
    size_t left = sizeof all + trail - offset;
    left = left < capacity - done ? left : capacity - done;
    memcpy((char *)to + done, (const char *)library_trail + (offset - sizeof all), left);
    return done + left;
}

int ta_library_load(size_t offset, const void *from, size_t bytes) {
    static struct saved all;
    if (offset > sizeof all + sizeof library_trail || bytes > sizeof all + sizeof library_trail - offset)
        return 1;
    for (size_t i = 0; i < bytes; i++, offset++) {
        char byte = ((const char *)from)[i];
        if (offset < sizeof all)
            ((char *)&all)[offset] = byte;
        else
            ((char *)library_trail)[offset - sizeof all] = byte;
    }
    if (all.trail_length > TRAIL)
        return 1;
    library_noops = all.noops;
    library_reserved = all.reserved;
    library_last_work = all.last_work;
    library_units_runs = all.units_runs;
    library_mark = all.mark;
    library_baton = all.baton;
    library_disorder = all.disorder;
    library_trail_length = all.trail_length;
    library_level = (int32_t)all.level;
    library_posts = (uint32_t)all.posts;
    library_boards = (uint32_t)all.boards;
    memcpy(library_told, all.told, sizeof all.told);
    library_told[sizeof library_told - 1] = 0;
    return 0;
}
