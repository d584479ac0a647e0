/* Handles of other shapes: counted events, numbered slots, addresses. */
#include <stdlib.h>
#include <unistd.h>

#include "object.h"
#include "state.h"

static struct ta_event_st *event_check(ta_event event) {
    return object_check(event, KIND_EVENT);
}

ta_status ta_event_create(ta_event *event) {
    return ta_events_create(1, event);
}

ta_status ta_events_create(uint32_t count, ta_event *events) {
    if (!events)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        struct ta_event_st *e = object_new(KIND_EVENT, sizeof *e);
        if (!e)
            return TA_OUT_OF_MEMORY;
        events[i] = e;
    }
    return TA_OK;
}

ta_status ta_event_retain(ta_event event) {
    return object_retain(event, KIND_EVENT) ? TA_OK : TA_INVALID_EVENT;
}

ta_status ta_event_release(ta_event event) {
    bool found;
    free(object_release(event, KIND_EVENT, &found));
    return found ? TA_OK : TA_INVALID_EVENT;
}

ta_status ta_event_references(ta_event event, uint32_t *references) {
    struct ta_event_st *e = event_check(event);
    if (!e)
        return TA_INVALID_EVENT;
    if (!references)
        return TA_INVALID_VALUE;
    *references = e->object.references;
    return TA_OK;
}

ta_status ta_event_signal(ta_event event, uint64_t value) {
    struct ta_event_st *e = event_check(event);
    if (!e)
        return TA_INVALID_EVENT;
    e->value = value;
    return TA_OK;
}

ta_status ta_events_sum(uint32_t count, const ta_event *events, uint64_t *sum) {
    uint64_t total = 0;
    if ((count && !events) || !sum)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        struct ta_event_st *e = event_check(events[i]);
        if (!e)
            return TA_INVALID_EVENT;
        total += e->value;
    }
    *sum = total;
    return TA_OK;
}

ta_status ta_events_sort(uint32_t count, ta_event *events) {
    if (count && !events)
        return TA_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++)
        if (!event_check(events[i]))
            return TA_INVALID_EVENT;
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && events[j]->value < events[j - 1]->value; j--) {
            ta_event e = events[j];
            events[j] = events[j - 1];
            events[j - 1] = e;
        }
    return TA_OK;
}

struct notification {
    ta_event event;
    uint32_t milliseconds;
    ta_notify notify;
    void *context;
    bool posted;
};

uint32_t library_posts;

static void *notify_later(void *argument) {
    struct notification n = *(struct notification *)argument;
    free(argument);
    usleep(n.milliseconds * 1000);
    n.notify(n.event, TA_OK, n.context);
    if (n.posted) {
        ta_event_release(n.event);
        __atomic_add_fetch(&library_posts, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static ta_status notify_from_a_thread(ta_event event, uint32_t milliseconds, ta_notify notify, void *context, bool posted) {
    pthread_t thread;
    if (!event_check(event))
        return TA_INVALID_EVENT;
    if (!notify)
        return TA_INVALID_VALUE;
    struct notification *n = malloc(sizeof *n);
    if (!n)
        return TA_OUT_OF_MEMORY;
    *n = (struct notification){event, milliseconds, notify, context, posted};
    if (posted)
        ta_event_retain(event);
    if (pthread_create(&thread, NULL, notify_later, n)) {
        if (posted)
            ta_event_release(event);
        free(n);
        return TA_OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    return TA_OK;
}

ta_status ta_event_notify(ta_event event, uint32_t milliseconds, ta_notify notify, void *context) {
    return notify_from_a_thread(event, milliseconds, notify, context, false);
}

ta_status ta_event_post(ta_event event, uint32_t milliseconds, ta_notify notify, void *context) {
    return notify_from_a_thread(event, milliseconds, notify, context, true);
}

struct continuation {
    uint32_t milliseconds;
    ta_done done;
    void *context;
};

static void *go_on_later(void *argument) {
    struct continuation c = *(struct continuation *)argument;
    free(argument);
    usleep(c.milliseconds * 1000);
    c.done(c.context);
    return NULL;
}

ta_status ta_event_then(ta_event event, uint32_t milliseconds, ta_done done, void *context) {
    if (!event_check(event))
        return TA_INVALID_EVENT;
    if (!done)
        return TA_INVALID_VALUE;
    struct continuation *c = malloc(sizeof *c);
    pthread_t thread;
    if (c)
        *c = (struct continuation){milliseconds, done, context};
    if (!c || pthread_create(&thread, NULL, go_on_later, c)) {
        free(c);
        return TA_OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    return TA_OK;
}

uint32_t ta_event_posts(void) {
    return __atomic_load_n(&library_posts, __ATOMIC_SEQ_CST);
}

#define SLOTS 64
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { bool used; int32_t value; } slots[SLOTS];

/* Slot numbers start at 1. */
static bool slot_live(ta_slot slot) {
    return slot >= 1 && slot <= SLOTS && slots[slot - 1].used;
}

ta_status ta_slot_take(ta_slot *slot) {
    ta_status status = TA_OUT_OF_MEMORY;
    if (!slot)
        return TA_INVALID_VALUE;
    pthread_mutex_lock(&slots_lock);
    for (ta_slot i = 0; i < SLOTS && status != TA_OK; i++) {
        if (slots[i].used)
            continue;
        slots[i].used = true;
        slots[i].value = 0;
        *slot = i + 1;
        status = TA_OK;
    }
    pthread_mutex_unlock(&slots_lock);
    return status;
}

ta_status ta_slot_set(ta_slot slot, int32_t value) {
    if (!slot_live(slot))
        return TA_INVALID_SLOT;
    slots[slot - 1].value = value;
    return TA_OK;
}

ta_status ta_slot_get(ta_slot slot, int32_t *value) {
    if (!slot_live(slot))
        return TA_INVALID_SLOT;
    if (!value)
        return TA_INVALID_VALUE;
    *value = slots[slot - 1].value;
    return TA_OK;
}

ta_status ta_slot_give(ta_slot slot) {
    if (!slot_live(slot))
        return TA_INVALID_SLOT;
    slots[slot - 1].used = false;
    return TA_OK;
}

#define ADDRESSES 64
static struct { ta_address address; size_t bytes; } addresses[ADDRESSES];
static ta_address next_address = 0x7000000000;

ta_status ta_address_reserve(size_t bytes, ta_address *address) {
    if (!address || !bytes)
        return TA_INVALID_VALUE;
    for (int i = 0; i < ADDRESSES; i++) {
        if (addresses[i].address)
            continue;
        addresses[i].address = next_address;
        addresses[i].bytes = bytes;
        next_address += (bytes + 4095) & ~(ta_address)4095;
        *address = addresses[i].address;
        return TA_OK;
    }
    return TA_OUT_OF_MEMORY;
}

ta_status ta_address_bytes(ta_address address, size_t *bytes) {
    for (int i = 0; address && i < ADDRESSES; i++)
        if (addresses[i].address == address) {
            if (!bytes)
                return TA_INVALID_VALUE;
            *bytes = addresses[i].bytes;
            return TA_OK;
        }
    return TA_INVALID_ADDRESS;
}

ta_status ta_address_release(ta_address address) {
    for (int i = 0; address && i < ADDRESSES; i++)
        if (addresses[i].address == address) {
            addresses[i].address = 0;
            return TA_OK;
        }
    return TA_INVALID_ADDRESS;
}
