/* Functions whose arguments depend on the value of one of them.   varied [remoted]    remoted: what is not described, too */
#include "check.h"
#include "testapi_varied.h"

static ta_status listed(int32_t request, ...) {
    va_list list;
    va_start(list, request);
    ta_status status = ta_dial_control_list(request, list);
    va_end(list);
    return status;
}

static void numbers(void) {
    int16_t level = 1;
    uint64_t wide = 1;
    double ratio = 1;
    CHECK_EQ(ta_dial_control(TA_DIAL_RESET), TA_OK);
    for (int n = -3; n < 4; n++) {
        CHECK_EQ(ta_dial_control(TA_DIAL_SET_LEVEL, n * 10000), TA_OK);
        CHECK_EQ(ta_dial_control(TA_DIAL_GET_LEVEL, &level), TA_OK);
        CHECK_EQ(level, n * 10000);
        CHECK_EQ(ta_dial_control(TA_DIAL_SET_WIDE, (uint64_t)n << 50 | 7), TA_OK);
        CHECK_EQ(listed(TA_DIAL_GET_WIDE, &wide), TA_OK);
        CHECK_EQ(wide, (uint64_t)n << 50 | 7);
        CHECK_EQ(ta_dial_control(TA_DIAL_SET_RATIO, n / 3.0), TA_OK);
        CHECK_EQ(ta_dial_control(TA_DIAL_GET_RATIO, &ratio), TA_OK);
        CHECK(ratio == n / 3.0);
        CHECK_EQ(listed(TA_DIAL_SET_RATIO, n / 7.0), TA_OK);
        CHECK_EQ(listed(TA_DIAL_GET_RATIO, &ratio), TA_OK);
        CHECK(ratio == n / 7.0);
        CHECK_EQ(ta_dial_control(TA_DIAL_RATIO_OF_FLOAT, (float)n / 2), TA_OK);
        CHECK_EQ(ta_dial_control(TA_DIAL_GET_RATIO, &ratio), TA_OK);
        CHECK(ratio == (double)n / 2);
    }
    CHECK_EQ(ta_dial_control(TA_DIAL_GET_WIDE, NULL), TA_INVALID_VALUE);
    uint32_t failed = 0;
    ta_dial_try(&failed, TA_DIAL_SET_WIDE, (uint64_t)77);
    ta_dial_try(&failed, TA_DIAL_GET_WIDE, NULL);
    ta_dial_try(&failed, TA_DIAL_GET_WIDE, &wide);
    CHECK_EQ(failed, 1);
    CHECK_EQ(wide, 77);
    ta_dial_try(&failed, TA_DIAL_RESET);
    CHECK_EQ(ta_dial_control(TA_DIAL_GET_WIDE, &wide), TA_OK);
    CHECK_EQ(wide, 0);
}

static void pointers(void) {
    const char *name = NULL;
    CHECK_EQ(ta_dial_control(TA_DIAL_SET_NAME, "a name"), TA_OK);
    CHECK_EQ(ta_dial_control(TA_DIAL_GET_NAME, &name), TA_OK);
    CHECK(strcmp(name, "a name") == 0);
    CHECK_EQ(listed(TA_DIAL_SET_NAME, "another"), TA_OK);
    CHECK_EQ(listed(TA_DIAL_GET_NAME, &name), TA_OK);
    CHECK(strcmp(name, "another") == 0);
    CHECK_EQ(ta_dial_control(TA_DIAL_SET_NAME, NULL), TA_INVALID_VALUE);
    ta_point points[4], sum = {0};
    memset(points, 0, sizeof points);
    for (int n = 0; n < 4; n++)
        points[n].x = n + 1, points[n].y = 10 * n;
    CHECK_EQ(ta_dial_control(TA_DIAL_SET_POINTS, points), TA_OK);
    CHECK_EQ(ta_dial_control(TA_DIAL_SUM_POINTS, &sum), TA_OK);
    CHECK(sum.x == 10 && sum.y == 60);
    ta_device device = NULL, back = NULL;
    uint32_t count = 0;
    CHECK_EQ(ta_device_list(1, &device, &count), TA_OK);
    CHECK_EQ(ta_dial_control(TA_DIAL_SET_DEVICE, device), TA_OK);
    CHECK_EQ(ta_dial_control(TA_DIAL_GET_DEVICE, &back), TA_OK);
    CHECK(back == device);
    CHECK_EQ(ta_dial_control(TA_DIAL_RESET), TA_OK);
}

static void many(void) {
    char to[200] = "before";
    CHECK_EQ(ta_texts_join(to, sizeof to, 0), TA_OK);
    CHECK(strcmp(to, "") == 0);
    CHECK_EQ(ta_texts_join(to, sizeof to, 3, "one", NULL, "three"), TA_OK);
    CHECK(strcmp(to, "one;none;three;") == 0);
    CHECK_EQ(ta_texts_join(to, 5, 10, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"), TA_OK);
    CHECK(strcmp(to, "1;2;") == 0);
    CHECK_EQ(ta_texts_join(NULL, 0, 1, "one"), TA_INVALID_VALUE);
}

int main(int argc, char **argv) {
    (void)argv;
    numbers();
    pointers();
    many();
    CHECK_EQ(ta_dial_control(1000), TA_UNSUPPORTED);
    if (argc > 1) {
        int hidden = 5;
        CHECK_EQ(ta_dial_control(TA_DIAL_HIDDEN, &hidden), TA_UNSUPPORTED);
        CHECK_EQ(hidden, 5);
        CHECK_EQ(listed(TA_DIAL_SET_LEVEL, 3), TA_UNSUPPORTED);
        char to[8] = "before";
        CHECK_EQ(ta_texts_join(to, sizeof to, 33), TA_UNSUPPORTED);
        CHECK(strcmp(to, "before") == 0);
    }
    return check_done();
}
