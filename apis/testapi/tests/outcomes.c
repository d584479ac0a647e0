/* Calls that fill an object with how they ended.
 * outcomes           what is equal natively and remotely
 * outcomes remoted   with a limit of device_memory=1000: refused and unsupported calls fill it, too
 * outcomes hold      calls until one fails; says with which code. A lost server is no success. */
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static void library(void) {
    ta_outcome *outcome = ta_outcome_new(), *other = ta_outcome_new();
    CHECK(outcome && other && outcome != other);
    CHECK_EQ(ta_outcome_code(outcome), TA_OK);
    CHECK_EQ(strcmp(ta_outcome_text(outcome), ""), 0);
    CHECK_EQ(ta_root(1ull << 62, outcome), 1u << 31);
    CHECK_EQ(ta_outcome_code(outcome), TA_OK);
    CHECK_EQ(ta_root(50, outcome), 0);
    CHECK_EQ(ta_outcome_code(outcome), TA_INVALID_VALUE);
    CHECK_EQ(strcmp(ta_outcome_text(outcome), "50 is no square"), 0);
    CHECK_EQ(ta_outcome_code(other), TA_OK);
    ta_ledger ledger = ta_ledger_open(0, other);
    CHECK(ledger == NULL);
    CHECK_EQ(ta_outcome_code(other), TA_INVALID_VALUE);
    CHECK_EQ(strcmp(ta_outcome_text(other), "a ledger needs a bound"), 0);
    /* Another call, another outcome. */
    ledger = ta_ledger_open(9, other);
    CHECK(ledger != NULL);
    CHECK_EQ(ta_outcome_code(other), TA_OK);
    CHECK_EQ(strcmp(ta_outcome_text(other), ""), 0);
    CHECK(ta_ledger_end(ledger) == NULL);
    CHECK_EQ(ta_outcome_code(outcome), TA_INVALID_VALUE);
    ta_outcome_set(outcome, 17, "said by the application");
    CHECK_EQ(ta_outcome_code(outcome), 17);
    CHECK_EQ(strcmp(ta_outcome_text(outcome), "said by the application"), 0);
    ta_keep(0, outcome);
    CHECK_EQ(ta_outcome_code(outcome), TA_INVALID_VALUE);
    /* Without an outcome a call works, or fails in silence. */
    CHECK_EQ(ta_root(49, NULL), 7);
    CHECK_EQ(ta_root(50, NULL), 0);
    CHECK_EQ(ta_outcome_code(NULL), TA_INVALID_VALUE);
    ta_outcome_free(outcome);
    ta_outcome_free(other);
    ta_outcome_free(NULL);
}

static void guest(void) {
    ta_outcome *outcome = ta_outcome_new();
    ta_keep(900, outcome);
    CHECK_EQ(ta_outcome_code(outcome), TA_OK);
    ta_keep(101, outcome);
    CHECK_EQ(ta_outcome_code(outcome), TA_REFUSED);
    CHECK_EQ(strcmp(ta_outcome_text(outcome), "the call was refused"), 0);
    ta_forget(outcome);
    CHECK_EQ(ta_outcome_code(outcome), TA_UNSUPPORTED);
    CHECK_EQ(strcmp(ta_outcome_text(outcome), "the call is not virtualized"), 0);
    ta_root(49, outcome);
    CHECK_EQ(ta_outcome_code(outcome), TA_OK);
    /* No such object: the call is refused, and nothing is told. */
    ta_outcome *freed = ta_outcome_new();
    ta_outcome_free(freed);
    CHECK_EQ(ta_root(49, freed), 0);
    CHECK_EQ(ta_root(49, (ta_outcome *)12345), 0);
    CHECK_EQ(ta_root(49, (ta_outcome *)&freed), 0);
    CHECK_EQ(ta_outcome_code(freed), TA_INVALID_VALUE);
    CHECK_EQ(ta_outcome_code((ta_outcome *)12345), TA_INVALID_VALUE);
    ta_outcome_free(outcome);
}

static int hold(void) {
    ta_outcome *outcome = ta_outcome_new(), *before = ta_outcome_new();
    ta_root(50, before);
    printf("holding %d %d\n", (int)getpid(), ta_process());
    fflush(stdout);
    while (ta_outcome_code(outcome) == TA_OK)
        ta_root(49, outcome);
    printf("lost %d %s\n", ta_outcome_code(outcome), ta_outcome_text(outcome));
    ta_ledger ledger = ta_ledger_open(9, outcome);
    printf("again %d %d\n", ta_outcome_code(outcome), ledger != NULL);
    /* Said by a library that is gone. */
    printf("before %d %s\n", ta_outcome_code(before), ta_outcome_text(before));
    return 3;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "hold") == 0)
        return hold();
    if (argc > 1)
        guest();
    library();
    return check_done();
}
