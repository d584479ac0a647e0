/* A random program that knows what each answer must be: objects of all kinds come, change, refer to each other and go.
 *     wander [STEPS [SEED]] */
#include <pthread.h>

#include "check.h"
#include "testapi.h"

#define LIVE 24
#define BYTES 4096

static uint64_t state;

static uint32_t pick(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* One object of each array's kind, as far as the program knows it. */
static struct { ta_device handle; uint32_t units; } devices[LIVE];
static struct { ta_buffer handle; uint32_t device; uint8_t content[BYTES]; void *tag; } buffers[LIVE];
static struct { ta_event handle; uint32_t references; uint64_t value; } events[LIVE];
static struct { ta_marker handle; uint64_t value, first; } markers[LIVE];
static struct { ta_program handle; uint32_t version; uint64_t notes[TA_PROGRAM_ENTRIES]; ta_entry entries[TA_PROGRAM_ENTRIES]; } programs[4];
static struct { ta_slot handle; int32_t value; } slots[LIVE];
static uint64_t wrong, steps_done, sum;

static void expect(int right) {
    if (!right) {
        if (!wrong)
            printf("wrong at step %llu\n", (unsigned long long)steps_done);
        wrong++;
    }
}

static void device_step(uint32_t at) {
    if (!devices[at].handle) {
        uint32_t units = 1 + pick(9);
        intptr_t properties[] = {TA_PROPERTY_UNITS, (intptr_t)units, 0};
        expect(ta_device_create(properties, &devices[at].handle) == TA_OK);
        devices[at].units = units;
        return;
    }
    uint32_t units = 0;
    expect(ta_device_query(devices[at].handle, TA_DEVICE_UNITS, sizeof units, &units, NULL) == TA_OK && units == devices[at].units);
    for (uint32_t i = 0; i < LIVE; i++)
        if (buffers[i].handle && buffers[i].device == at)
            return;
    expect(ta_device_close(devices[at].handle) == TA_OK);
    devices[at].handle = NULL;
}

static void buffer_step(uint32_t at) {
    if (!buffers[at].handle) {
        uint32_t on = pick(LIVE);
        if (!devices[on].handle)
            return;
        expect(ta_buffer_create(devices[on].handle, BYTES, &buffers[at].handle) == TA_OK);
        memset(buffers[at].content, 0, BYTES);
        buffers[at].device = on;
        buffers[at].tag = NULL;
        return;
    }
    static uint8_t read[BYTES];
    uint32_t offset = pick(BYTES), bytes = pick(BYTES - offset) + 1;
    ta_device device = NULL;
    switch (pick(6)) {
    case 0:
        expect(ta_buffer_destroy(buffers[at].handle) == TA_OK);
        buffers[at].handle = NULL;
        return;
    case 1:
        for (uint32_t i = 0; i < bytes; i++)
            buffers[at].content[offset + i] = (uint8_t)(i * 7 + offset);
        expect(ta_buffer_write(buffers[at].handle, offset, bytes, buffers[at].content + offset) == TA_OK);
        return;
    case 2:
        memset(buffers[at].content, (int)(offset & 0xff), BYTES);
        expect(ta_buffer_fill(buffers[at].handle, (uint8_t)(offset & 0xff)) == TA_OK);
        return;
    case 3:
        buffers[at].tag = (void *)(uintptr_t)(offset + 1);
        expect(ta_buffer_tag_set(buffers[at].handle, buffers[at].tag) == TA_OK);
        return;
    case 4:
        expect(ta_buffer_device(buffers[at].handle, &device) == TA_OK && device == devices[buffers[at].device].handle);
        expect(ta_buffer_tag(buffers[at].handle) == buffers[at].tag);
        return;
    default:
        expect(ta_buffer_read(buffers[at].handle, offset, bytes, read) == TA_OK);
        expect(memcmp(read, buffers[at].content + offset, bytes) == 0);
        sum += read[0];
    }
}

static void event_step(uint32_t at) {
    if (!events[at].handle) {
        expect(ta_event_create(&events[at].handle) == TA_OK);
        events[at].references = 1;
        events[at].value = 0;
        return;
    }
    uint32_t references = 0;
    uint64_t value = 0;
    switch (pick(5)) {
    case 0:
        events[at].references++;
        expect(ta_event_retain(events[at].handle) == TA_OK);
        return;
    case 1:
    case 2:
        expect(ta_event_release(events[at].handle) == TA_OK);
        if (--events[at].references == 0)
            events[at].handle = NULL;
        return;
    case 3:
        events[at].value = pick(1000);
        expect(ta_event_signal(events[at].handle, events[at].value) == TA_OK);
        return;
    default:
        expect(ta_event_references(events[at].handle, &references) == TA_OK && references == events[at].references);
        expect(ta_events_sum(1, &events[at].handle, &value) == TA_OK && value == events[at].value);
    }
}

static void marker_step(uint32_t at) {
    if (!markers[at].handle) {
        uint64_t value = 1 + pick(500);
        expect(ta_marker_create(&markers[at].handle, value, 64) == TA_OK);
        markers[at].value = markers[at].first = value;
        return;
    }
    uint64_t value = 0;
    uint32_t other = pick(LIVE);
    switch (pick(6)) {
    case 0:
        expect(ta_marker_destroy_async(markers[at].handle) == TA_OK);
        markers[at].handle = NULL;
        return;
    case 1:
        markers[at].value += other;
        expect(ta_marker_add(markers[at].handle, other) == TA_OK);
        return;
    case 2:
        markers[at].value = other;
        expect(ta_marker_set(markers[at].handle, other) == TA_OK);
        return;
    case 3:
        if (markers[other].handle || markers[at].value == 0)
            return;
        markers[other].handle = ta_marker_copy(markers[at].handle, NULL);
        markers[other].value = markers[other].first = markers[at].value;
        expect(markers[other].handle != NULL);
        return;
    case 4:
        expect(ta_marker_first_value(markers[at].handle, &value) == TA_OK && value == markers[at].first);
        return;
    default:
        expect(ta_marker_value(markers[at].handle, &value) == TA_OK && value == markers[at].value);
    }
}

static void program_step(uint32_t at) {
    if (!programs[at].handle) {
        programs[at].version = pick(100);
        expect(ta_program_load(programs[at].version, &programs[at].handle) == TA_OK);
        memset(programs[at].notes, 0, sizeof programs[at].notes);
        memset(programs[at].entries, 0, sizeof programs[at].entries);
        return;
    }
    uint32_t number = pick(TA_PROGRAM_ENTRIES);
    uint64_t facts = 0;
    ta_entry *entry = &programs[at].entries[number];
    if (!*entry) {
        expect(ta_program_entry(programs[at].handle, number, entry) == TA_OK);
        return;
    }
    switch (pick(4)) {
    case 0:
        expect(ta_program_unload(programs[at].handle) == TA_OK);
        programs[at].handle = NULL;
        return;
    case 1:
        programs[at].notes[number] = pick(1000);
        expect(ta_entry_note(*entry, programs[at].notes[number]) == TA_OK);
        return;
    case 2:
        expect(ta_entry_facts(*entry, &facts) == TA_OK && facts == programs[at].version * 100ull + number);
        return;
    default:
        expect(ta_entry_noted(*entry, &facts) == TA_OK && facts == programs[at].notes[number]);
    }
}

static void slot_step(uint32_t at) {
    int32_t value = 0;
    if (!slots[at].handle) {
        expect(ta_slot_take(&slots[at].handle) == TA_OK);
        slots[at].value = 0;
        return;
    }
    switch (pick(3)) {
    case 0:
        expect(ta_slot_give(slots[at].handle) == TA_OK);
        slots[at].handle = 0;
        return;
    case 1:
        slots[at].value = (int32_t)pick(1000);
        expect(ta_slot_set(slots[at].handle, slots[at].value) == TA_OK);
        return;
    default:
        expect(ta_slot_get(slots[at].handle, &value) == TA_OK && value == slots[at].value);
    }
}

/* Each thread has a device of its own, whatever others do meanwhile. */
static void *focus(void *steps) {
    ta_device mine = NULL, found = NULL;
    intptr_t wrong_here = 0;
    if (ta_device_open("thread", &mine) != TA_OK || ta_focus(mine) != TA_OK)
        return (void *)1;
    for (uint32_t i = 0; i < (uintptr_t)steps; i++) {
        uint32_t mark = 0;
        wrong_here += ta_focused(&found) != TA_OK || found != mine;
        wrong_here += ta_focus_marked(i % 4, &mark) != TA_OK || mark != (i < 4 ? 0 : i - 4);
        wrong_here += ta_focus_mark(i % 4, i) != TA_OK;
    }
    return (void *)wrong_here;
}

int main(int argc, char **argv) {
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, focus, (void *)(uintptr_t)(steps / 10));
    ta_level_set((int32_t)steps);
    for (steps_done = 0; steps_done < steps; steps_done++) {
        uint32_t at = pick(LIVE);
        switch (pick(7)) {
        case 0: device_step(at); break;
        case 1:
        case 2: buffer_step(at); break;
        case 3: event_step(at); break;
        case 4: marker_step(at); break;
        case 5: program_step(at % 4); break;
        default: slot_step(at);
        }
    }
    CHECK_EQ(wrong, 0);
    for (int i = 0; i < 2; i++) {
        void *wrong_there = NULL;
        pthread_join(threads[i], &wrong_there);
        CHECK_EQ((intptr_t)wrong_there, 0);
    }
    CHECK_EQ(ta_level_get(), (int32_t)steps);
    printf("sum %llu\n", (unsigned long long)sum);
    return check_done();
}
