/* A check prints one line; native and remoted outputs are compared line by line. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_passed, check_failed;

static inline void check_line(int ok, const char *what) {
    printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    fflush(stdout);
    if (ok)
        check_passed++;
    else
        check_failed++;
}

#define CHECK(condition) check_line((condition) != 0, #condition)
/* The value is part of the line, so that a wrong one shows in the comparison. */
#define CHECK_EQ(expression, expected)                                                      \
    do {                                                                                    \
        long long got_ = (long long)(expression), want_ = (long long)(expected);            \
        char line_[512];                                                                    \
        snprintf(line_, sizeof line_, "%s = %lld (expected %lld)", #expression, got_, want_); \
        check_line(got_ == want_, line_);                                                   \
    } while (0)

static inline int check_done(void) {
    printf("%d passed, %d failed\n", check_passed, check_failed);
    fflush(stdout); /* an exec may follow */
    return check_failed != 0;
}

#endif
