/* Calls that fill an object with how they ended. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "testapi.h"

struct ta_outcome_st {
    int32_t code;
    char text[100];
};

ta_outcome *ta_outcome_new(void) { return calloc(1, sizeof(ta_outcome)); }
void ta_outcome_free(ta_outcome *outcome) { free(outcome); }
int32_t ta_outcome_code(const ta_outcome *outcome) { return outcome ? outcome->code : TA_INVALID_VALUE; }
const char *ta_outcome_text(const ta_outcome *outcome) { return outcome ? outcome->text : "no outcome"; }
void ta_outcome_set(ta_outcome *outcome, int32_t code, const char *text) {
    if (!outcome)
        return;
    outcome->code = code;
    snprintf(outcome->text, sizeof outcome->text, "%s", text ? text : "");
}
uint32_t ta_root(uint64_t square, ta_outcome *outcome) {
    uint64_t low = 0, high = UINT32_MAX;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (middle * middle < square)
            low = middle + 1;
        else
            high = middle;
    }
    char text[100];
    snprintf(text, sizeof text, "%llu is no square", (unsigned long long)square);
    bool found = low * low == square;
    ta_outcome_set(outcome, found ? TA_OK : TA_INVALID_VALUE, found ? "" : text);
    return found ? (uint32_t)low : 0;
}
ta_ledger ta_ledger_open(uint64_t bound, ta_outcome *outcome) {
    ta_ledger ledger = NULL;
    ta_report report = ta_ledger_create(bound, &ledger);
    ta_outcome_set(outcome, report ? ta_report_code(report) : TA_OK, report ? ta_report_text(report) : "");
    ta_report_free(report);
    return ledger;
}
void ta_keep(uint64_t bytes, ta_outcome *outcome) {
    ta_outcome_set(outcome, bytes ? TA_OK : TA_INVALID_VALUE, bytes ? "" : "nothing to keep");
}
void ta_forget(ta_outcome *outcome) { ta_outcome_set(outcome, TA_OK, ""); }
