/* Structs with pointers: the library's memory arrives, the application's stays its own, no address of the library does.
 * structs          what is equal natively and remotely
 * structs remoted  what the description cannot say: the call fails, nothing of the struct has changed */
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static uint8_t from[5000], to[5000];
static char label[] = "the application's";

static ta_transfer fresh(uint32_t moves) {
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 7 + moves);
    memset(to, 0, sizeof to);
    return (ta_transfer){.from = from, .bytes = sizeof from, .to = to, .room = sizeof to, .label = label, .moves = moves};
}

static void library_lists(void) {
    ta_transfer t = fresh(TA_MOVES_NOTHING);
    uint32_t units = 0;
    CHECK_EQ(ta_transfer_run(&t), TA_OK);
    CHECK(t.from == from && t.to == to && t.label == label);
    CHECK(memcmp(to, from, sizeof to) == 0);
    CHECK_EQ(t.device_count, 2);
    CHECK(t.devices && t.devices[0] && t.devices[1] && t.devices[0] != t.devices[1]);
    CHECK_EQ(t.devices ? ta_device_units(t.devices[1], &units) : -99, TA_OK);
    CHECK_EQ(units, 2);
    CHECK_EQ(t.units, 6);
    CHECK(t.names && strcmp(t.names[0], "first") == 0 && strcmp(t.names[1], "second") == 0);
}

static void application_lists(void) {
    ta_device list[3] = {0};
    const char *names[3] = {"a", "b", "c"};
    uint32_t count = 0;
    CHECK_EQ(ta_device_list(2, list, &count), TA_OK);
    CHECK_EQ(ta_device_open("third", &list[2]), TA_OK);
    ta_transfer t = fresh(TA_MOVES_NOTHING);
    t.devices = list;
    t.names = names;
    t.device_count = 3;
    t.label = NULL;
    CHECK_EQ(ta_transfer_run(&t), TA_OK);
    CHECK(t.devices == list && t.names == names && t.device_count == 3);
    CHECK_EQ(t.units, 7);
    CHECK(t.label && strcmp(t.label, "the library's") == 0);
    CHECK(strcmp(names[2], "c") == 0);
    /* A value that the library returned can be passed in again. */
    t.devices = NULL;
    t.names = NULL;
    t.device_count = 0;
    t.moves = TA_REPLACES_LABEL;
    CHECK_EQ(ta_transfer_run(&t), TA_OK);
    CHECK(strcmp(t.label, "replaced") == 0);
    t.moves = TA_MOVES_NOTHING;
    CHECK_EQ(ta_transfer_run(&t), TA_OK);
    CHECK_EQ(t.units, 6);
    CHECK_EQ(ta_device_close(list[2]), TA_OK);
    t.devices = list;
    t.device_count = 3;
    CHECK_EQ(ta_transfer_run(&t), TA_INVALID_DEVICE);
}

static void nothing_to_copy(void) {
    ta_transfer t = {0};
    CHECK_EQ(ta_transfer_run(&t), TA_OK);
    CHECK(!t.from && !t.to && t.devices && t.names && t.label);
    t = fresh(TA_CLEARS_FROM);
    t.room = 10;
    CHECK_EQ(ta_transfer_run(&t), TA_OK);
    CHECK(!t.from && t.to == to && to[9] == from[9] && to[10] == 0);
    CHECK_EQ(ta_transfer_run(NULL), TA_INVALID_VALUE);
}

/* Natively these move the pointer; the description does not say so. */
static void undescribed(uint32_t moves) {
    ta_transfer t = fresh(moves), before = t;
    CHECK_EQ(ta_transfer_run(&t), TA_REFUSED);
    CHECK(memcmp(&t, &before, sizeof t) == 0);
    CHECK_EQ(ta_add(1, 2), 3);
}

/* A struct of that size, the last bytes before memory that is not there. */
static ta_options *at_the_end(uint32_t size) {
    static char *pages;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!pages) {
        pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(pages + 2 * page, page, PROT_NONE);
    }
    ta_options *options = (ta_options *)(pages + 2 * page - ((size + 7) & ~7u));
    memset(pages, 0, 2 * page);
    options->struct_size = size;
    return options;
}

static void sized_structs(void) {
    static const uint32_t more[] = {10, 20, 30};
    ta_device devices[2];
    uint32_t count = 0;
    CHECK_EQ(ta_device_list(2, devices, &count), TA_OK);
    const uint32_t sizes[] = {8, 16, 24, 32, 40, 48, 56, 64, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t size = sizes[i];
        ta_options *o = at_the_end(size);
        o->level = 5;
        if (size >= 16)
            o->more = more;
        if (size >= 24)
            o->more_count = 3;
        if (size >= 40)
            o->device = devices[1];
        CHECK_EQ(ta_options_apply(o), TA_OK);
        CHECK_EQ(o->struct_size, size);
        CHECK_EQ(size >= 32 ? o->sum : 65, 65);
        CHECK(size < 16 || o->more == more);
        CHECK(size < 40 || o->device == devices[1]);
        CHECK_EQ(size >= 48 ? o->units : 2, 2);
        CHECK_EQ(size >= 48 ? o->struct_seen : 0, size >= 48 ? (size < sizeof *o ? size : sizeof *o) : 0);
        CHECK_EQ(ta_options_check(o), TA_OK);
    }
    const uint32_t wrong[] = {0, 1, 4, 7, 4097, 1u << 20, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ta_options *o = at_the_end(64);
        o->struct_size = wrong[i];
        CHECK_EQ(ta_options_apply(o), TA_INVALID_VALUE);
        CHECK_EQ(ta_options_check(o), TA_INVALID_VALUE);
        CHECK_EQ(o->sum, 0);
    }
    ta_options *o = at_the_end(64);
    ((char *)o)[63] = 1;
    CHECK_EQ(ta_options_apply(o), TA_INVALID_VALUE);
    CHECK_EQ(ta_options_apply(NULL), TA_INVALID_VALUE);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        undescribed(TA_MOVES_FROM);
        undescribed(TA_MOVES_TO);
        undescribed(TA_MOVES_LABEL);
        undescribed(TA_REPLACES_FROM);
    }
    library_lists();
    application_lists();
    nothing_to_copy();
    sized_structs();
    const char *const *labels = ta_transfer_labels();
    CHECK(labels && strcmp(labels[0], "the library's") == 0 && strcmp(labels[1], "replaced") == 0 && !labels[2]);
    return check_done();
}
