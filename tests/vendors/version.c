/* Prints what a version of testapi says of itself, and if it has a function that an earlier one lacks. */
#include "testapi.h"
#include <stdio.h>

int main(void) {
    int32_t values[] = {1, 2, 3};
    ta_summary summary = {0};
    const char *version = ta_version();
    ta_status noop = ta_noop(), summarized = ta_summarize(values, 3, &summary);
    printf("%s %d %d\n", version ? version : "none", noop, summarized);
    return 0;
}
