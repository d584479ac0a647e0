/* Functions that say by a number how they ended: objects that refuse to end, outputs and charges of calls that fail.
 *   latches [remoted]    remoted: beside a limit of 1,000 bytes of device memory, and what refused calls return */
#include <string.h>

#include "check.h"
#include "testapi_latches.h"

static void ends(void) {
    ta_latch latch = ta_latch_open(2);
    int32_t numbers[4] = {0};
    uint32_t left = 77;
    CHECK(latch != NULL);
    CHECK_EQ(ta_latch_close(latch), -1);
    /* Still open: it can be used, and asked to end again. */
    CHECK_EQ(ta_latch_count(latch, numbers, 4), 4);
    CHECK(numbers[0] == 1 && numbers[3] == 4);
    CHECK_EQ(ta_latch_shut(latch, &left), -1);
    CHECK_EQ(left, 77);
    CHECK_EQ(ta_latch_shut(latch, &left), 0);
    CHECK_EQ(left, 0);
    CHECK_EQ(ta_latch_shut(latch, &left), -1);
    CHECK_EQ(ta_latch_close(latch), -1);
    for (int i = 0; i < 300; i++) {
        latch = ta_latch_open(1);
        CHECK_EQ(ta_latch_close(latch), -1);
        CHECK_EQ(ta_latch_close(latch), 0);
    }
}

static void outputs(void) {
    ta_latch latch = ta_latch_open(0);
    int32_t numbers[200];
    memset(numbers, 0x55, sizeof numbers);
    CHECK_EQ(ta_latch_count(latch, numbers, 200), -3);
    CHECK_EQ(numbers[0], 0x55555555);
    CHECK_EQ(ta_latch_count(latch, numbers, 100), 100);
    CHECK(numbers[99] == 100 && numbers[100] == 0x55555555);
    CHECK_EQ(ta_latch_count(latch, numbers, 0), 0);
    CHECK_EQ(ta_latch_widen(latch, 300), 300);
    CHECK_EQ(ta_latch_widen(latch, 1001), (size_t)-20);
    CHECK_EQ(ta_latch_widen(latch, 200), 500);
    CHECK_EQ(ta_latch_close(latch), 0);
}

static void facts(int remoted) {
    ta_latch first = ta_latch_open(3), second = ta_latch_open(0);
    uint32_t stuck = 0;
    uint64_t places[2] = {0};
    CHECK_EQ(ta_latch_facts(first, &stuck, &places[0]), 0);
    CHECK_EQ(stuck, 3);
    CHECK_EQ(ta_latch_close(first), -1);
    CHECK_EQ(ta_latch_facts(first, &stuck, &places[0]), 0);
    CHECK_EQ(stuck, 3);
    CHECK_EQ(ta_latch_facts(second, &stuck, &places[1]), 0);
    CHECK_EQ(stuck, 0);
    CHECK_EQ(places[1], places[0] + 1);
    CHECK_EQ(ta_latch_facts(second, NULL, &places[1]), -1);
    /* The API server has asked, once, when the latch was new. */
    if (remoted)
        CHECK_EQ(ta_latch_asked(first), 1);
    CHECK_EQ(ta_latch_close(second), 0);
    CHECK_EQ(ta_latch_facts(second, &stuck, &places[1]), -1);
    while (ta_latch_close(first))
        ;
}

static void refused(void) {
    ta_latch latch = ta_latch_open(0);
    int32_t number = 5;
    CHECK_EQ(ta_latch_close((ta_latch)&number), -1);
    CHECK_EQ(ta_latch_count((ta_latch)&number, &number, 1), -2);
    CHECK_EQ(number, 5);
    /* Of 1,000 bytes: what failed was not charged. */
    CHECK_EQ(ta_latch_widen(latch, 600), 600);
    for (int i = 0; i < 10; i++)
        CHECK_EQ(ta_latch_widen(latch, 1001), (size_t)-21);
    CHECK_EQ(ta_latch_widen(latch, 401), (size_t)-21);
    CHECK_EQ(ta_latch_widen(latch, 400), 1000);
    CHECK_EQ(ta_latch_close(latch), 0);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        refused();
        facts(1);
    } else {
        ends();
        outputs();
        facts(0);
    }
    return check_done();
}
