/* Calls that report by an object. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "object.h"
#include "state.h"

struct ta_report_st {
    int32_t code;
    const char *text;
    /* Its own text, if it is made again. */
    char kept[100];
};
struct ta_ledger_st {
    struct object object;
    uint64_t bound, sum;
};

static _Atomic uint32_t alive;

static ta_report report(int32_t code, const char *text) {
    ta_report made = malloc(sizeof *made);
    if (!made)
        abort();
    *made = (struct ta_report_st){.code = code, .text = text};
    alive++;
    return made;
}
ta_report ta_report_make(int32_t code, const char *text) {
    ta_report made = report(code, "");
    snprintf(made->kept, sizeof made->kept, "%s", text);
    made->text = made->kept;
    return made;
}

int32_t ta_report_code(const ta_report_object *report) { return report ? report->code : TA_OK; }
const char *ta_report_text(ta_report report) { return report ? report->text : ""; }
void ta_report_free(ta_report_object *const report) {
    if (report)
        alive--;
    free(report);
}
ta_report ta_reports_alive(uint32_t *count) {
    if (!count)
        return report(TA_INVALID_VALUE, "no place for the count");
    *count = alive;
    return NULL;
}

ta_report ta_ledger_create(uint64_t bound, ta_ledger *ledger) {
    if (!ledger || bound == 0)
        return report(TA_INVALID_VALUE, "a ledger needs a bound");
    struct ta_ledger_st *made = object_new(KIND_LEDGER, sizeof *made);
    if (!made)
        return report(TA_OUT_OF_MEMORY, "no memory for a ledger");
    made->bound = bound;
    *ledger = made;
    return NULL;
}
ta_report ta_ledger_add(ta_ledger ledger, uint64_t value, uint64_t *left) {
    struct ta_ledger_st *l = object_check(ledger, KIND_LEDGER);
    if (!l)
        return report(TA_INVALID_VALUE, "no such ledger");
    if (left)
        *left = l->bound - l->sum;
    if (value > l->bound - l->sum)
        return report(TA_OUT_OF_MEMORY, "beyond the bound");
    l->sum += value;
    if (left)
        *left = l->bound - l->sum;
    return NULL;
}
ta_report ta_ledger_put(uint64_t value, ta_ledger ledger) { return ta_ledger_add(ledger, value, NULL); }
ta_report ta_ledger_missed(uint32_t *count, uint64_t *values) {
    if (count)
        *count = 0;
    if (values)
        *values = 0;
    return NULL;
}
ta_report ta_ledger_sum(ta_ledger ledger, uint64_t *sum) {
    struct ta_ledger_st *l = object_check(ledger, KIND_LEDGER);
    if (!l || !sum)
        return report(TA_INVALID_VALUE, "no such ledger");
    *sum = l->sum;
    return NULL;
}
ta_report ta_ledger_end(ta_ledger ledger) {
    bool found;
    free(object_release(ledger, KIND_LEDGER, &found));
    return found ? NULL : report(TA_INVALID_VALUE, "no such ledger");
}
ta_report_object *ta_ledger_reserve(uint64_t bytes) { return bytes ? NULL : report(TA_INVALID_VALUE, "nothing to reserve"); }
ta_report ta_ledger_release(uint64_t bytes) { return bytes ? NULL : report(TA_INVALID_VALUE, "nothing to release"); }
struct later {
    ta_ledger ledger;
    uint32_t milliseconds;
    ta_reported reported;
    void *context;
};
static void *report_later(void *argument) {
    struct later later = *(struct later *)argument;
    free(argument);
    usleep(later.milliseconds * 1000);
    struct ta_ledger_st *l = object_check(later.ledger, KIND_LEDGER);
    later.reported(l && l->sum < l->bound ? NULL : report(TA_OUT_OF_MEMORY, "the ledger is full"), later.context);
    return NULL;
}
ta_report ta_ledger_later(ta_ledger ledger, uint32_t milliseconds, ta_reported reported, void *context) {
    if (!object_check(ledger, KIND_LEDGER) || !reported)
        return report(TA_INVALID_VALUE, "no such ledger, or no function");
    struct later *later = malloc(sizeof *later);
    pthread_t thread;
    if (later)
        *later = (struct later){ledger, milliseconds, reported, context};
    if (!later || pthread_create(&thread, NULL, report_later, later)) {
        free(later);
        return report(TA_OUT_OF_MEMORY, "no thread");
    }
    pthread_detach(thread);
    return NULL;
}
ta_report ta_ledger_print(ta_ledger ledger) {
    return object_check(ledger, KIND_LEDGER) ? NULL : report(TA_INVALID_VALUE, "no such ledger");
}
