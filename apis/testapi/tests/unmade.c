/* Creations that nobody waits for, and that fail. Run under a limit of 1000 bytes of device_memory; not run natively.
 * unmade [ROUNDS]    so many rounds, with level memory (default: 30000)
 * unmade sync        under AVIARY_SYNC=1 the call itself says so */
#include <unistd.h>

#include "check.h"
#include "resident.h"
#include "testapi.h"

/* The error of what failed before, told by the next call that can. */
static ta_status told(void) {
    return ta_noop();
}

static void a_dead_handle(void) {
    ta_marker marker = NULL, alive = NULL;
    uint64_t value = 0;
    CHECK_EQ(ta_marker_create(&marker, 0, 8), TA_OK);
    CHECK(marker != NULL);
    CHECK_EQ(ta_marker_create(&alive, 3, 8), TA_OK);
    CHECK_EQ(ta_marker_value(alive, &value), TA_INVALID_VALUE); /* the creation's error */
    CHECK_EQ(value, 3);
    CHECK_EQ(ta_marker_value(marker, &value), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_first_value(marker, &value), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_add(marker, 1), TA_OK);
    CHECK_EQ(told(), TA_INVALID_MARKER);
    CHECK_EQ(ta_buffer_bytes((ta_buffer)marker, &(size_t){0}), TA_INVALID_BUFFER);
    CHECK_EQ(ta_marker_destroy(marker), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_destroy(marker), TA_INVALID_MARKER);
    CHECK_EQ(told(), TA_OK);

    /* Refused before the library was asked. */
    CHECK_EQ(ta_marker_create(&marker, 1, 993), TA_OK);
    CHECK_EQ(told(), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_marker_value(marker, &value), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_destroy_async(marker), TA_OK);
    CHECK_EQ(told(), TA_INVALID_MARKER);
    /* A refused object holds nothing, and a created one holds the amount that it asked for. */
    CHECK_EQ(ta_marker_create(&marker, 1, 992), TA_OK);
    CHECK_EQ(told(), TA_OK);
    CHECK_EQ(ta_marker_destroy(alive), TA_OK);
    CHECK_EQ(ta_marker_create(&alive, 1, 9), TA_OK);
    CHECK_EQ(told(), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_marker_destroy(alive), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_destroy_async(marker), TA_OK);
    CHECK_EQ(ta_marker_create(&marker, 1, 1000), TA_OK);
    CHECK_EQ(ta_marker_destroy(marker), TA_OK);
    CHECK_EQ(told(), TA_OK);

    /* NULL has no room for a handle; the library says so, later. */
    CHECK_EQ(ta_marker_create(NULL, 1, 0), TA_OK);
    CHECK_EQ(told(), TA_INVALID_VALUE);
    CHECK_EQ(ta_markers_live(), 0);
}

static void returned(void) {
    ta_status error = -1;
    ta_stream stream = ta_stream_fork(NULL, &error);
    CHECK(stream != NULL);
    CHECK_EQ(error, TA_OK);
    CHECK_EQ(told(), TA_INVALID_STREAM);
    CHECK_EQ(ta_stream_synchronize(stream), TA_INVALID_STREAM);
    CHECK_EQ(ta_stream_destroy(stream), TA_INVALID_STREAM);
    CHECK_EQ(ta_stream_destroy(stream), TA_INVALID_STREAM);
    ta_marker marker = ta_marker_copy((ta_marker)&error, NULL);
    CHECK(marker != NULL);
    CHECK_EQ(told(), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_destroy(marker), TA_INVALID_MARKER);
}

/* The first ones are there; the library fails at the next. */
static void some_of_many(void) {
    ta_marker markers[4] = {NULL};
    uint64_t value = 0;
    int server = ta_process();
    CHECK_EQ(ta_markers_create(4, markers, TA_MARKER_HEAVY - 2), TA_OK);
    CHECK_EQ(told(), TA_OUT_OF_MEMORY);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(ta_marker_value(markers[i], &value), TA_INVALID_MARKER);
        CHECK_EQ(ta_marker_destroy(markers[i]), TA_INVALID_MARKER);
    }
    /* The library's own leak, as natively; where the session has moved, it has gone with the process. */
    int live = (int)ta_markers_live(), moved = ta_process() != server;
    CHECK(moved || live == 2);
}

static int failures(int count) {
    int wrong = 0;
    ta_marker marker = NULL;
    ta_status error = -1;
    uint64_t cells[600] = {UINT64_MAX};
    for (int i = 0; i < count; i++) {
        wrong += ta_marker_create(&marker, i % 2 ? 0 : 1, 2000) != TA_OK;
        wrong += i % 4 < 2 ? ta_marker_destroy(marker) != TA_INVALID_MARKER : ta_marker_destroy_async(marker) != TA_OK;
        ta_stream stream = ta_stream_fork(NULL, &error);
        wrong += !stream || ta_stream_destroy(stream) != TA_INVALID_STREAM;
        if (i % 16 == 0) {
            /* Its memory goes with the handle, though there never was an object. */
            wrong += ta_marker_watch(cells, 600, &marker) != TA_OK || ta_marker_destroy(marker) != TA_INVALID_MARKER;
        }
    }
    told();
    return wrong;
}

/* Where the session has moved, the library is in another process, whose memory is not compared with that of the first. */
static void level(int count) {
    int server = ta_process(), wrong = failures(count);
    long guest_before = resident(getpid()), server_before = resident(server);
    wrong += failures(2 * count);
    long guest_grown = resident(getpid()) - guest_before, server_grown = resident(server) - server_before;
    int moved = ta_process() != server;
    fprintf(stderr, "grown: %ld KiB here, %ld KiB in the library's process\n", guest_grown, server_grown);
    CHECK_EQ(wrong, 0);
    CHECK(guest_before > 0 && (moved || server_before > 0));
    CHECK(guest_grown < 500);
    CHECK(moved || server_grown < 500);
}

static void at_once(void) {
    ta_marker marker = NULL, markers[2] = {NULL};
    ta_status error = -1;
    CHECK_EQ(ta_marker_create(&marker, 0, 8), TA_INVALID_VALUE);
    CHECK_EQ(ta_marker_create(&marker, 1, 1001), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_markers_create(2, markers, TA_MARKER_HEAVY), TA_OUT_OF_MEMORY);
    CHECK(marker == NULL && markers[0] == NULL && markers[1] == NULL);
    CHECK(ta_stream_fork(NULL, &error) == NULL);
    CHECK_EQ(error, TA_INVALID_STREAM);
    int wrong = 0;
    for (int i = 0; i < 2000; i++)
        wrong += ta_marker_create(&marker, 0, 8) != TA_INVALID_VALUE;
    CHECK_EQ(wrong, 0);
    CHECK_EQ(ta_marker_create(&marker, 1, 1000), TA_OK);
    CHECK_EQ(ta_marker_destroy(marker), TA_OK);
    CHECK_EQ(ta_markers_live(), 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "sync") == 0) {
        at_once();
        return check_done();
    }
    a_dead_handle();
    returned();
    level(argc > 1 ? atoi(argv[1]) : 30000);
    some_of_many();
    return check_done();
}
