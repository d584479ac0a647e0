/* Functions that take one struct of arguments.
 * packed           what is equal natively and remotely
 * packed remoted   structs that cannot be taken apart */
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "testapi_packed.h"

static const int64_t numbers[] = {5, -7, 1LL << 40};

static ta_parcel pack(void) {
    const char label[] = {'b', 'o', 'x'};
    ta_parcel_pack_args args = {sizeof args, label, sizeof label, numbers, 3, (ta_parcel)0x55aa, 99};
    CHECK_EQ(ta_parcel_pack(&args), TA_OK);
    CHECK(args.parcel != NULL && args.parcel != (ta_parcel)0x55aa);
    CHECK_EQ(args.sum, (1LL << 40) - 2);
    CHECK(args.label == label && args.values == numbers && args.count == 3 && args.struct_size == sizeof args);
    return args.parcel;
}

static void watched(ta_parcel parcel, int64_t sum, void *context) {
    ta_parcel *seen = context;
    *seen = parcel;
    CHECK_EQ(sum, (1LL << 40) - 2);
}

static void equal(void) {
    ta_parcel parcel = pack();
    ta_parcel_facts_args facts = {.struct_size = sizeof facts, .parcel = parcel};
    CHECK_EQ(ta_parcel_facts(&facts), TA_OK);
    CHECK_EQ(facts.count, 3);
    CHECK(facts.parcel == parcel && facts.corner.x == 0 && facts.corner.y == 0);
    CHECK(facts.facts[0].name_size == 5 && memcmp(facts.facts[0].name, "label", 5) == 0);
    CHECK(facts.facts[0].kind == 1 && facts.facts[0].value_size == 3 && memcmp(facts.facts[0].text, "box", 3) == 0);
    CHECK(facts.facts[1].kind == 0 && facts.facts[1].number == (1LL << 40) - 2);
    CHECK(facts.facts[2].kind == 2 && facts.facts[2].value_size == 3);
    CHECK(memcmp(facts.facts[2].list, numbers, sizeof numbers) == 0);

    int64_t values[4] = {0, 0, 0, 4711};
    ta_parcel_move_args move = {sizeof move, parcel, {2, -3}, 2, values, 1};
    CHECK_EQ(ta_parcel_move(&move), TA_OK);
    CHECK(move.room == 3 && move.last == 77 && values[0] == 0);
    move.room = 4;
    CHECK_EQ(ta_parcel_move(&move), TA_OK);
    CHECK(move.room == 3 && values[0] == 5 && values[1] == -7 && values[2] == 1LL << 40 && values[3] == 4711);
    move.values = NULL;
    CHECK_EQ(ta_parcel_move(&move), TA_OK);
    CHECK_EQ(ta_parcel_facts(&facts), TA_OK);
    CHECK(facts.corner.x == 6 && facts.corner.y == -9);

    /* An older program has nothing behind `values`, and the end of a page there. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), old = offsetof(ta_parcel_move_args, last);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && munmap(pages + page, page) == 0);
    ta_parcel_move_args *shorter = (ta_parcel_move_args *)(void *)(pages + page - old);
    memcpy(shorter, &move, old);
    shorter->struct_size = old;
    shorter->room = 0;
    CHECK_EQ(ta_parcel_move(shorter), TA_OK);
    CHECK(shorter->room == 3 && shorter->struct_size == old);

    ta_parcel seen = NULL;
    ta_parcel_watch_args watch = {sizeof watch, parcel, watched, &seen};
    CHECK_EQ(ta_parcel_watch(&watch), TA_OK);
    CHECK(seen == parcel);
    watch.watch = NULL;
    CHECK_EQ(ta_parcel_watch(&watch), TA_OK);

    ta_parcel_end_args end = {parcel, 99};
    CHECK_EQ(ta_parcel_end(&end), TA_OK);
    CHECK_EQ(end.left, 0);
    end.parcel = NULL;
    CHECK_EQ(ta_parcel_end(&end), TA_INVALID_VALUE);
}

static void remoted(void) {
    ta_parcel parcel = pack();
    ta_parcel_move_args move = {.struct_size = 0, .parcel = parcel};
    CHECK_EQ(ta_parcel_move(&move), TA_REFUSED);
    move.struct_size = 7;
    CHECK_EQ(ta_parcel_move(&move), TA_REFUSED);
    move.struct_size = 1ULL << 40;
    CHECK_EQ(ta_parcel_move(&move), TA_REFUSED);
    CHECK_EQ(ta_parcel_move(NULL), TA_REFUSED);
    CHECK_EQ(ta_parcel_end(NULL), TA_REFUSED);
    ta_parcel_pack_args few = {offsetof(ta_parcel_pack_args, count), "x", 1, NULL, 0, NULL, 0};
    CHECK_EQ(ta_parcel_pack(&few), TA_REFUSED);
    /* Of members that the header does not have zeros pass; anything else may mean something. */
    struct {
        ta_parcel_move_args known;
        uint64_t later;
    } more = {{sizeof more, parcel, {0, 0}, 0, NULL, 0}, 0};
    CHECK_EQ(ta_parcel_move(&more.known), TA_OK);
    CHECK(more.known.room == 3 && more.known.last == 77 && more.known.struct_size == sizeof more);
    more.later = 1;
    CHECK_EQ(ta_parcel_move(&more.known), TA_REFUSED);
    /* An object that has ended, and none at all. */
    ta_parcel_end_args end = {parcel, 0};
    CHECK_EQ(ta_parcel_end(&end), TA_OK);
    move = (ta_parcel_move_args){.struct_size = sizeof move, .parcel = parcel};
    CHECK_EQ(ta_parcel_move(&move), TA_INVALID_VALUE);
    CHECK_EQ(ta_parcel_end(&end), TA_INVALID_VALUE);
    move.parcel = (ta_parcel)0x1234;
    CHECK_EQ(ta_parcel_move(&move), TA_INVALID_VALUE);
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "remoted") == 0)
        remoted();
    else
        equal();
    return check_done();
}
