/* Handles that end with another handle, and whose addresses the library uses again.
 * programs             what a native run shows as well
 * programs remoted     what only a remoted run has; under a limit of 1000 bytes of device_memory */
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "resident.h"
#include "testapi.h"

static uint64_t facts(ta_entry entry) {
    uint64_t facts = 0;
    ta_status status = ta_entry_facts(entry, &facts);
    return status == TA_OK ? facts : (uint64_t)(int64_t)status;
}
static uint64_t place(ta_entry entry) {
    uint64_t place = UINT64_MAX;
    ta_entry_place(entry, &place);
    return place;
}
static uint64_t noted(ta_entry entry) {
    uint64_t note = UINT64_MAX;
    ta_status status = ta_entry_noted(entry, &note);
    return status == TA_OK ? note : (uint64_t)(int64_t)status;
}
static ta_entry entry_of(ta_program program, uint32_t number) {
    ta_entry entry = NULL;
    CHECK_EQ(ta_program_entry(program, number, &entry), TA_OK);
    return entry;
}

static ta_status unload(ta_program program, int asynchronously) {
    return asynchronously ? ta_program_unload_async(program) : ta_program_unload(program);
}

/* Metadata of an entry is not reported of the next one in its place. */
static void again(int asynchronously) {
    ta_program program = NULL;
    uint64_t first_place = 0;
    for (uint32_t version = 1; version <= 3; version++) {
        ta_entry entries[6] = {NULL};
        uint32_t count = 0;
        CHECK_EQ(ta_program_load(version, &program), TA_OK);
        ta_entry entry = entry_of(program, 2);
        CHECK(entry == entry_of(program, 2));
        CHECK_EQ(ta_program_entries(program, 6, entries, &count), TA_OK);
        CHECK_EQ(count, TA_PROGRAM_ENTRIES);
        CHECK(entries[2] == entry && entries[1] != entry && !entries[4]);
        if (version == 1)
            first_place = place(entry);
        CHECK(place(entry) == first_place);
        CHECK_EQ(facts(entry), version * 100 + 2);
        CHECK_EQ(facts(entry), version * 100 + 2); /* remembered */
        CHECK(ta_program_main(program) == entries[0]);
        CHECK(ta_program_main(program) == entries[0]);
        CHECK_EQ(facts(ta_program_main(program)), version * 100);
        CHECK_EQ(noted(entry), 0);
        CHECK_EQ(ta_entry_note(entry, version), TA_OK);
        CHECK_EQ(noted(entry), version);
        CHECK_EQ(unload(program, asynchronously), TA_OK);
        CHECK_EQ(facts(entry), (uint64_t)TA_INVALID_ENTRY);
        CHECK_EQ(noted(entry), (uint64_t)TA_INVALID_ENTRY);
        CHECK_EQ(ta_program_unload(program), TA_INVALID_PROGRAM);
    }
}

/* An end that fails ends nothing. */
static void kept(void) {
    ta_program program = NULL;
    CHECK_EQ(ta_program_load(7, &program), TA_OK);
    ta_entry entry = entry_of(program, 1);
    CHECK_EQ(ta_entry_note(entry, 70), TA_OK);
    CHECK_EQ(ta_program_keep(program, 1), TA_OK);
    CHECK_EQ(ta_program_unload(program), TA_BUSY);
    CHECK_EQ(facts(entry), 701);
    CHECK_EQ(noted(entry), 70);
    CHECK(entry == entry_of(program, 1));
    CHECK_EQ(ta_program_keep(program, 0), TA_OK);
    CHECK_EQ(ta_program_unload(program), TA_OK);
    CHECK_EQ(facts(entry), (uint64_t)TA_INVALID_ENTRY);
}

/* Two steps down, created without waiting; memory that belongs to what ends. */
static void bindings(int asynchronously) {
    uint64_t cells[1000], sum = 0;
    int wrong = 0;
    for (uint64_t round = 0; round < 300; round++) {
        ta_program program = NULL;
        ta_binding binding = NULL, other = NULL;
        for (uint64_t i = 0; i < 1000; i++)
            cells[i] = round + i;
        wrong += ta_program_load(1, &program) != TA_OK;
        ta_entry entries[TA_PROGRAM_ENTRIES];
        wrong += ta_program_entries(program, TA_PROGRAM_ENTRIES, entries, NULL) != TA_OK;
        wrong += ta_entry_bind(entries[0], 600, cells, 1000, &binding) != TA_OK;
        wrong += ta_entry_bind(entries[1], 300, cells, 10, &other) != TA_OK;
        wrong += ta_binding_sum(binding, &sum) != TA_OK || sum != 1000 * round + 499500;
        if (round % 3 == 0)
            wrong += ta_binding_end(other) != TA_OK;
        wrong += unload(program, asynchronously) != TA_OK;
        wrong += ta_binding_sum(binding, &sum) != TA_INVALID_BINDING;
        wrong += ta_binding_end(other) != TA_INVALID_BINDING;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(ta_noop(), TA_OK); /* nothing was refused: what had ended held nothing */
}

/* --- ended by one thread while another one uses the places again ---------------- */

static ta_program slow;

static void *end_slowly(void *unused) {
    (void)unused;
    return (void *)(intptr_t)ta_program_unload_slowly(slow, 600);
}

static void while_ending(void) {
    ta_program program = NULL, held = NULL;
    CHECK_EQ(ta_program_load(1, &slow), TA_OK);
    CHECK_EQ(ta_program_load(2, &held), TA_OK); /* the place after it stays taken */
    ta_entry old = entry_of(slow, 3);
    uint64_t before = place(old), cells[2] = {3, 4}, sum = 0;
    CHECK_EQ(facts(old), 103);
    CHECK_EQ(ta_entry_note(old, 9), TA_OK);
    pthread_t thread;
    void *status = NULL;
    pthread_create(&thread, NULL, end_slowly, NULL);
    /* Its place is free by then, and the call goes on: a busy machine may start a thread late. */
    usleep(200000);
    CHECK_EQ(ta_program_load(5, &program), TA_OK);
    ta_entry new = entry_of(program, 3);
    ta_binding binding = NULL;
    CHECK(place(new) == before);
    CHECK_EQ(facts(new), 503);
    CHECK_EQ(noted(new), 0);
    CHECK_EQ(ta_entry_bind(new, 10, cells, 2, &binding), TA_OK);
    pthread_join(thread, &status);
    CHECK_EQ((intptr_t)status, TA_OK);
    CHECK_EQ(facts(new), 503);
    CHECK(entry_of(program, 3) == new);
    CHECK_EQ(ta_binding_sum(binding, &sum), TA_OK);
    CHECK_EQ(sum, 7);
    CHECK_EQ(ta_program_unload(program), TA_OK);
    CHECK_EQ(facts(new), (uint64_t)TA_INVALID_ENTRY);
    CHECK_EQ(ta_program_unload(held), TA_OK);
}

#define THREADS 4

static void *load_and_unload(void *argument) {
    size_t me = (size_t)argument, wrong = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        ta_program program = NULL;
        uint32_t version = (uint32_t)me * 1000 + i;
        wrong += ta_program_load(version, &program) != TA_OK;
        for (uint32_t n = 0; n < TA_PROGRAM_ENTRIES; n++) {
            ta_entry entry = NULL;
            wrong += ta_program_entry(program, n, &entry) != TA_OK;
            wrong += facts(entry) != version * 100ull + n || noted(entry) != 0;
            wrong += facts(entry) != version * 100ull + n || ta_entry_note(entry, i + 1) != TA_OK;
        }
        wrong += unload(program, i % 3 == 0) != TA_OK;
    }
    wrong += ta_noop() != TA_OK;
    return (void *)wrong;
}

static void threads(void) {
    pthread_t all[THREADS];
    size_t wrong = 0;
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, load_and_unload, (void *)i);
    for (size_t i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(all[i], &result);
        wrong += (size_t)result;
    }
    CHECK_EQ(wrong, 0);
}

/* --- what only a remoted run has --------------------------------------------------- */

/* Natively the handle of what has ended means the next object in its place. */
static void never_another(int asynchronously) {
    ta_program program = NULL;
    CHECK_EQ(ta_program_load(1, &program), TA_OK);
    ta_entry old = entry_of(program, 1);
    CHECK_EQ(facts(old), 101);
    CHECK_EQ(unload(program, asynchronously), TA_OK);
    CHECK_EQ(ta_program_load(2, &program), TA_OK);
    ta_entry new = entry_of(program, 1);
    CHECK(old != new);
    CHECK_EQ(facts(old), (uint64_t)TA_INVALID_ENTRY);
    CHECK_EQ(facts(new), 201);
    CHECK_EQ(ta_program_unload(program), TA_OK);
}

/* Of 1000 bytes; each round holds 900 of them. */
static void charges(void) {
    bindings(0);
    bindings(1);
    ta_program program = NULL;
    ta_binding binding = NULL, other = NULL;
    CHECK_EQ(ta_program_load(1, &program), TA_OK);
    CHECK_EQ(ta_entry_bind(entry_of(program, 0), 600, NULL, 0, &binding), TA_OK);
    CHECK_EQ(ta_entry_bind(entry_of(program, 1), 500, NULL, 0, &other), TA_OK);
    CHECK_EQ(ta_noop(), TA_OUT_OF_MEMORY); /* the limit is there */
    CHECK_EQ(ta_program_unload(program), TA_OK);
    CHECK_EQ(ta_binding_end(other), TA_INVALID_BINDING);
}

static int cycles(int count) {
    int wrong = 0;
    uint64_t cells[600] = {1};
    for (int i = 0; i < count; i++) {
        ta_program program = NULL;
        ta_entry entries[TA_PROGRAM_ENTRIES];
        ta_binding binding = NULL;
        wrong += ta_program_load((uint32_t)i, &program) != TA_OK;
        wrong += ta_program_entries(program, TA_PROGRAM_ENTRIES, entries, NULL) != TA_OK;
        wrong += facts(entries[3]) != (uint64_t)i * 100 + 3 || ta_entry_note(entries[3], 1) != TA_OK;
        wrong += ta_entry_bind(entries[0], 900, cells, 600, &binding) != TA_OK;
        wrong += unload(program, i % 2) != TA_OK;
    }
    return wrong + (ta_noop() != TA_OK);
}

/* Bindings that come and go while their entry stays. */
static int under_one(ta_entry entry, int count) {
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        ta_binding binding = NULL;
        wrong += ta_entry_bind(entry, 900, NULL, 0, &binding) != TA_OK || ta_binding_end(binding) != TA_OK;
    }
    return wrong + (ta_noop() != TA_OK);
}

static void level(void) {
    ta_program program = NULL;
    CHECK_EQ(ta_program_load(1, &program), TA_OK);
    ta_entry entry = entry_of(program, 0);
    int server = ta_process(), wrong = cycles(10000) + under_one(entry, 10000);
    long guest_before = resident(getpid()), server_before = resident(server);
    wrong += cycles(30000) + under_one(entry, 60000);
    long guest_grown = resident(getpid()) - guest_before, server_grown = resident(server) - server_before;
    fprintf(stderr, "grown: %ld KiB here, %ld KiB in the library's process\n", guest_grown, server_grown);
    CHECK_EQ(wrong, 0);
    CHECK(guest_before > 0 && server_before > 0);
    CHECK(guest_grown < 500);
    CHECK(server_grown < 500);
    CHECK_EQ(ta_program_unload(program), TA_OK);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "remoted") == 0) {
        never_another(0);
        never_another(1);
        charges();
        level();
        return check_done();
    }
    for (int asynchronously = 0; asynchronously < 2; asynchronously++) {
        again(asynchronously);
        bindings(asynchronously);
    }
    kept();
    while_ending();
    threads();
    return check_done();
}
