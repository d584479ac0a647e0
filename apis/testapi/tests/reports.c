/* Calls that report by an object.
 * reports           what is equal natively and remotely
 * reports remoted   with a limit of device_memory=1000: refused and unsupported calls have objects, too
 * reports hold      calls until one fails; says with which object. A lost server is no success. */
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

/* The code of a report, which is freed. */
static int32_t taken(ta_report report) {
    int32_t code = ta_report_code(report);
    ta_report_free(report);
    return code;
}

static uint32_t alive(void) {
    uint32_t count = 99;
    CHECK_EQ(taken(ta_reports_alive(&count)), TA_OK);
    return count;
}

static void library_reports(void) {
    ta_ledger ledger = NULL;
    uint64_t left = 7, sum = 7;
    CHECK(ta_ledger_create(100, &ledger) == NULL && ledger);
    CHECK(ta_ledger_add(ledger, 60, &left) == NULL);
    CHECK_EQ(left, 40);
    ta_report report = ta_ledger_add(ledger, 60, &left);
    CHECK(report != NULL);
    CHECK_EQ(ta_report_code(report), TA_OUT_OF_MEMORY);
    CHECK(strcmp(ta_report_text(report), "beyond the bound") == 0);
    CHECK_EQ(left, 40);
    CHECK_EQ(alive(), 1);
    ta_report other = ta_ledger_create(0, &ledger);
    CHECK(other && other != report);
    CHECK_EQ(alive(), 2);
    CHECK_EQ(taken(other), TA_INVALID_VALUE);
    CHECK_EQ(ta_report_code(report), TA_OUT_OF_MEMORY);
    ta_report_free(report);
    CHECK_EQ(alive(), 0);
    CHECK(ta_ledger_sum(ledger, &sum) == NULL);
    CHECK_EQ(sum, 60);
    CHECK(ta_ledger_end(ledger) == NULL);
    CHECK_EQ(ta_report_code(NULL), TA_OK);
    CHECK(strcmp(ta_report_text(NULL), "") == 0);
    ta_report_free(NULL);
    for (int i = 0; i < 1000; i++)
        if (taken(ta_ledger_reserve(0)) != TA_INVALID_VALUE)
            CHECK(0);
    CHECK_EQ(alive(), 0);
}

static void told_later(ta_report report, void *context) {
    int32_t code = report ? taken(report) : TA_OK;
    atomic_store((_Atomic int32_t *)context, code + 1000);
}

static void later_reports(void) {
    ta_ledger ledger = NULL;
    for (uint64_t sum = 9; sum <= 10; sum++) {
        _Atomic int32_t told = 0;
        CHECK(ta_ledger_create(10, &ledger) == NULL);
        CHECK(ta_ledger_add(ledger, sum, NULL) == NULL);
        CHECK(ta_ledger_later(ledger, 1, told_later, &told) == NULL);
        while (!atomic_load(&told))
            usleep(1000);
        CHECK_EQ(told, 1000 + (sum < 10 ? TA_OK : TA_OUT_OF_MEMORY));
        CHECK(ta_ledger_end(ledger) == NULL);
    }
    CHECK_EQ(taken(ta_ledger_later(NULL, 1, told_later, NULL)), TA_INVALID_VALUE);
    CHECK_EQ(alive(), 0);
}

static void guest_reports(void) {
    uint64_t sum = 7;
    CHECK(ta_ledger_reserve(900) == NULL);
    for (int i = 0; i < 3; i++) {
        ta_report refused = ta_ledger_reserve(101);
        CHECK(refused != NULL);
        CHECK_EQ(ta_report_code(refused), TA_REFUSED);
        CHECK(strcmp(ta_report_text(refused), "the call was refused") == 0);
        ta_report_free(refused);
    }
    CHECK(ta_ledger_release(900) == NULL);
    ta_report unsupported = ta_ledger_print(NULL);
    CHECK_EQ(ta_report_code(unsupported), TA_UNSUPPORTED);
    ta_report_free(unsupported);
    /* A handle that is none is refused before the library sees it; an object of the guest's is none for the server. */
    CHECK_EQ(taken(ta_ledger_sum((ta_ledger)12345, &sum)), TA_REFUSED);
    CHECK_EQ(taken(ta_ledger_sum((ta_ledger)unsupported, &sum)), TA_REFUSED);
    CHECK_EQ(sum, 7);
    CHECK_EQ(alive(), 0);
}

/* Success at once. What becomes of a failure, of the library's or a refusal, the specification has said. */
static void late_reports(void) {
    ta_ledger ledger = NULL;
    uint32_t count = 9;
    uint64_t sum = 0, values = 9;
    const char *sync = getenv("AVIARY_SYNC");
    int32_t now = sync && strcmp(sync, "1") == 0 ? TA_REFUSED : TA_OK;
    CHECK(ta_ledger_create(10, &ledger) == NULL);
    CHECK(ta_ledger_put(4, ledger) == NULL);
    CHECK(ta_ledger_sum(ledger, &sum) == NULL && sum == 4);
    CHECK_EQ(taken(ta_ledger_put(7, ledger)), now);
    CHECK_EQ(taken(ta_ledger_put(100, (ta_ledger)12345)), now);
    CHECK(ta_ledger_sum(ledger, &sum) == NULL && sum == 4);
    CHECK(ta_ledger_missed(&count, &values) == NULL);
    CHECK_EQ(count, 2);
    CHECK_EQ(values, 107);
    CHECK_EQ(alive(), 0);
    CHECK(ta_ledger_end(ledger) == NULL);
    ta_report report = ta_ledger_end(ledger);
    CHECK(strcmp(ta_report_text(report), "this is no ledger") == 0);
    ta_report_free(report);
}

static int hold(void) {
    ta_ledger ledger = NULL;
    uint64_t left = 0, sum = 7;
    if (ta_ledger_create(UINT64_MAX, &ledger))
        return 2;
    ta_report before = ta_ledger_add(ledger, 1, NULL) ? NULL : ta_ledger_create(0, NULL);
    printf("holding %d %d\n", (int)getpid(), ta_process());
    fflush(stdout);
    for (;;) {
        ta_report report = ta_ledger_add(ledger, 1, &left);
        if (!report)
            continue;
        printf("lost %d %s\n", ta_report_code(report), ta_report_text(report));
        ta_report_free(report);
        ta_report again = ta_ledger_sum(ledger, &sum);
        printf("again %d %d\n", ta_report_code(again), (int)sum);
        /* Made by a library that is gone. */
        printf("before %d %s\n", ta_report_code(before), ta_report_text(before));
        ta_report_free(before);
        return 3;
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "hold") == 0)
        return hold();
    if (argc > 1)
        guest_reports();
    if (argc > 1)
        late_reports();
    library_reports();
    later_reports();
    return check_done();
}
