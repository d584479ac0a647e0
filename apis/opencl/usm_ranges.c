/* Allocations of unified shared memory, sorted by address. Compiled into both sides: each has its own list. */
#include "usm_ranges.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    struct usm_range *ranges;
    size_t count, room;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

void usm_lock(void) {
    pthread_mutex_lock(&known.lock);
}

void usm_unlock(void) {
    pthread_mutex_unlock(&known.lock);
}

/* How many ranges begin at or before the address. */
static size_t begun_by(const void *pointer) {
    size_t low = 0, high = known.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)known.ranges[middle].start <= (uintptr_t)pointer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct usm_range *usm_at(const void *pointer, size_t size) {
    size_t begun = begun_by(pointer);
    if (!begun)
        return NULL;
    struct usm_range *range = &known.ranges[begun - 1];
    size_t offset = (uintptr_t)pointer - (uintptr_t)range->start;
    return offset < range->size && size <= range->size - offset ? range : NULL;
}

struct usm_range *usm_starting_at(const void *start, cl_context context) {
    struct usm_range *range = usm_at(start, 0);
    return range && range->start == start && range->context == context ? range : NULL;
}

struct usm_range *usm_overlapping(const void *start, size_t size) {
    struct usm_range *range = usm_at(start, 0);
    size_t next = begun_by(start);
    if (!range && next < known.count && (uintptr_t)known.ranges[next].start - (uintptr_t)start < size)
        range = &known.ranges[next];
    return range;
}

struct usm_range usm_take(struct usm_range *range) {
    struct usm_range taken = *range;
    size_t behind = (size_t)(known.ranges + known.count - (range + 1));
    memmove(range, range + 1, behind * sizeof *range);
    known.count--;
    return taken;
}

int usm_add(struct usm_range range) {
    if (known.count == known.room) {
        size_t room = known.room ? 2 * known.room : 64;
        struct usm_range *larger = realloc(known.ranges, room * sizeof *larger);
        if (!larger)
            return 0;
        known.ranges = larger;
        known.room = room;
    }
    size_t at = begun_by(range.start);
    memmove(known.ranges + at + 1, known.ranges + at, (known.count - at) * sizeof range);
    known.ranges[at] = range;
    known.count++;
    return 1;
}

struct usm_range *usm_numbered(size_t number) {
    return number < known.count ? &known.ranges[number] : NULL;
}

int opencl_usm_leaves(const void *pointer, size_t size) {
    usm_lock();
    int leaves = usm_at(pointer, 0) && !usm_at(pointer, size);
    usm_unlock();
    return leaves;
}
