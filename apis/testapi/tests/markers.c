/* Handles that are no objects, and objects where another type is declared. */
#include "check.h"
#include "testapi.h"

static void predefined(void) {
    uint64_t value = 1;
    ta_marker a = NULL, b = NULL, next = NULL;
    CHECK_EQ(ta_marker_value(TA_MARKER_FIRST, &value), TA_OK);
    CHECK_EQ(value, 0);
    CHECK_EQ(ta_marker_value(TA_MARKER_LAST, &value), TA_OK);
    CHECK(value == UINT64_MAX);
    CHECK_EQ(ta_marker_value((ta_marker)0x2, &value), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_value((ta_marker)0x10000, &value), TA_INVALID_MARKER);
    CHECK_EQ(ta_buffer_bytes((ta_buffer)TA_MARKER_FIRST, &(size_t){0}), TA_INVALID_BUFFER);
    CHECK_EQ(ta_marker_set(TA_MARKER_FIRST, 7), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_destroy(TA_MARKER_LAST), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_value(TA_MARKER_LAST, &value), TA_OK);

    /* The library answers them: in an output, as the result, in a struct. */
    CHECK_EQ(ta_marker_next(TA_MARKER_LAST, &next), TA_OK);
    CHECK(next == TA_MARKER_FIRST);
    CHECK_EQ(ta_marker_create(&a, 10, 0), TA_OK);
    CHECK_EQ(ta_marker_create(&b, 20, 0), TA_OK);
    CHECK_EQ(ta_marker_next(a, &next), TA_OK);
    CHECK(next == TA_MARKER_LAST);
    CHECK(ta_marker_greatest(0, NULL) == TA_MARKER_LAST);
    ta_marker some[] = {TA_MARKER_FIRST, b, a}, all[] = {a, TA_MARKER_LAST, b};
    CHECK(ta_marker_greatest(3, some) == b);
    CHECK(ta_marker_greatest(3, all) == TA_MARKER_LAST);
    ta_note notes[] = {{a, 0}, {TA_MARKER_FIRST, 5}, {b, 0}};
    CHECK_EQ(ta_notes_read(3, notes), TA_OK);
    CHECK(notes[0].marker == a && notes[1].marker == TA_MARKER_FIRST && notes[2].marker == b);
    CHECK(notes[0].value == 10 && notes[1].value == 0 && notes[2].value == 20);
    CHECK_EQ(ta_marker_destroy(a), TA_OK);
    CHECK_EQ(ta_marker_destroy(b), TA_OK);
    CHECK_EQ(ta_marker_destroy(b), TA_INVALID_MARKER);
    CHECK_EQ(ta_markers_live(), 0);
}

static void other_types(void) {
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    ta_marker marker = NULL;
    ta_event event = NULL;
    uint32_t kind = 0;
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, 10, &buffer), TA_OK);
    CHECK_EQ(ta_marker_create(&marker, 1, 0), TA_OK);
    CHECK_EQ(ta_event_create(&event), TA_OK);
    CHECK_EQ(ta_object_kind(buffer, &kind), TA_OK);
    CHECK_EQ(kind, TA_IS_BUFFER);
    CHECK_EQ(ta_object_kind((ta_buffer)marker, &kind), TA_OK);
    CHECK_EQ(kind, TA_IS_MARKER);
    CHECK_EQ(ta_object_kind((ta_buffer)device, &kind), TA_OK);
    CHECK_EQ(kind, TA_IS_DEVICE);
    CHECK_EQ(ta_object_kind((ta_buffer)event, &kind), TA_INVALID_BUFFER);
    CHECK_EQ(ta_object_kind(NULL, &kind), TA_INVALID_BUFFER);
    CHECK_EQ(ta_event_release(event), TA_OK);
    CHECK_EQ(ta_marker_destroy(marker), TA_OK);
    CHECK_EQ(ta_object_kind((ta_buffer)marker, &kind), TA_INVALID_BUFFER);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
}

/* A copy has what its original was at the time, whatever becomes of that, and wherever the two are made again. */
static void copies(void) {
    ta_marker original = NULL;
    uint64_t first = 0, value = 0;
    CHECK_EQ(ta_marker_create(&original, 10, 0), TA_OK);
    CHECK_EQ(ta_marker_set(original, 20), TA_OK);
    ta_marker copy = ta_marker_copy(original, NULL);
    CHECK_EQ(ta_marker_set(original, 30), TA_OK);
    CHECK_EQ(ta_marker_set(copy, 40), TA_OK);
    for (int round = 0; round < 10; round++) {
        CHECK_EQ(ta_marker_first_value(original, &first), TA_OK);
        CHECK_EQ(first, 10);
        CHECK_EQ(ta_marker_first_value(copy, &first), TA_OK);
        CHECK_EQ(first, 20);
        CHECK_EQ(ta_marker_value(original, &value), TA_OK);
        CHECK_EQ(value, 30);
        CHECK_EQ(ta_marker_value(copy, &value), TA_OK);
        CHECK_EQ(value, 40);
    }
    CHECK_EQ(ta_marker_destroy(copy), TA_OK);
    CHECK_EQ(ta_marker_destroy(original), TA_OK);
}

int main(void) {
    predefined();
    other_types();
    copies();
    return check_done();
}
