/* Objects that are created without waiting: the application has the handle before the library has the object.
 * A native run shows the same lines.
 * minted [MARKERS]      so many markers are created and destroyed, with level memory (default: 10000) */
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "resident.h"
#include "testapi.h"

static void one_by_one(void) {
    ta_marker a = NULL, b = NULL, many[100], copy;
    ta_status error = -1;
    uint64_t value = 0;
    CHECK_EQ(ta_marker_create(&a, 10, 100), TA_OK);
    CHECK_EQ(ta_marker_create(&b, 20, 0), TA_OK);
    CHECK(a != NULL && b != NULL && a != b);
    CHECK_EQ(ta_marker_add(a, 5), TA_OK); /* an asynchronous use */
    CHECK_EQ(ta_marker_value(a, &value), TA_OK);
    CHECK_EQ(value, 15);
    CHECK_EQ(ta_marker_first_value(a, &value), TA_OK);
    CHECK_EQ(value, 10);
    CHECK_EQ(ta_marker_set(b, 7), TA_OK); /* a synchronous one */
    CHECK(ta_marker_greatest(2, (ta_marker[]){b, a}) == a);
    ta_marker c = ta_marker_copy(a, &error);
    CHECK(c != NULL && c != a);
    CHECK_EQ(error, TA_OK);
    CHECK_EQ(ta_marker_value(c, &value), TA_OK);
    CHECK_EQ(value, 15);
    CHECK_EQ(ta_markers_live(), 3);
    CHECK_EQ(ta_marker_destroy_async(c), TA_OK);
    CHECK_EQ(ta_marker_value(c, &value), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_destroy(a), TA_OK);
    CHECK_EQ(ta_marker_destroy(a), TA_INVALID_MARKER);
    CHECK_EQ(ta_marker_value(a, &value), TA_INVALID_MARKER);

    CHECK_EQ(ta_marker_make(&a, 30, 1), TA_OK);
    CHECK_EQ(ta_marker_make(&c, 31, 0), TA_OK);
    CHECK_EQ(ta_marker_make(NULL, 31, 0), TA_INVALID_VALUE); /* this call waits */
    CHECK_EQ(ta_marker_make(&copy, 0, 1), TA_INVALID_VALUE);
    CHECK_EQ(ta_marker_value(a, &value), TA_OK);
    CHECK_EQ(value, 30);
    CHECK_EQ(ta_marker_value(c, &value), TA_OK);
    CHECK_EQ(value, 31);
    CHECK_EQ(ta_marker_destroy(b), TA_OK);
    CHECK_EQ(ta_marker_destroy_async(a), TA_OK);
    CHECK_EQ(ta_marker_destroy_async(c), TA_OK);

    CHECK_EQ(ta_markers_create(100, many, 1000), TA_OK);
    int right = 0;
    for (int i = 0; i < 100; i++)
        right += ta_marker_value(many[i], &value) == TA_OK && value == 1000 + (uint64_t)i;
    CHECK_EQ(right, 100);
    for (int i = 0; i < 100; i++)
        right += ta_marker_destroy_async(many[i]) == TA_OK;
    CHECK_EQ(right, 200);
    CHECK_EQ(ta_markers_live(), 0);
}

/* A handle with a table behind it, returned; and memory that belongs to what is created. */
static void other_shapes(void) {
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    ta_marker watcher = NULL;
    ta_status error = -1;
    uint8_t back[64];
    uint64_t cells[1000], value = 0;
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, sizeof back, &buffer), TA_OK);
    CHECK_EQ(ta_buffer_fill(buffer, 9), TA_OK);
    ta_stream first = ta_stream_create(device, &error);
    ta_stream stream = ta_stream_fork(first, &error);
    CHECK(stream != NULL && stream != first);
    CHECK_EQ(error, TA_OK);
    CHECK(stream && *(void **)stream != NULL); /* an ICD loader looks there */
    CHECK_EQ(ta_read_async(buffer, 0, sizeof back, back, stream), TA_OK);
    CHECK_EQ(ta_stream_synchronize(stream), TA_OK);
    CHECK(back[0] == 9 && back[63] == 9);
    CHECK_EQ(ta_stream_destroy(stream), TA_OK);
    CHECK_EQ(ta_stream_destroy(first), TA_OK);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);

    int wrong = 0;
    for (int round = 0; round < 3000; round++) {
        for (int i = 0; i < 1000; i++)
            cells[i] = (uint64_t)(round + i);
        wrong += ta_marker_watch(cells, 1000, &watcher) != TA_OK;
        if (round % 100 == 0)
            wrong += ta_marker_value(watcher, &value) != TA_OK || value != 1000 * (uint64_t)round + 499500;
        wrong += (round % 2 ? ta_marker_destroy(watcher) : ta_marker_destroy_async(watcher)) != TA_OK;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(ta_markers_live(), 0);
}

/* --- handed from thread to thread ------------------------------------------- */

#define THREADS 4
#define HANDED 5000

static ta_marker handed[THREADS][HANDED];
static int ready[THREADS];

static void *hand_on(void *argument) {
    size_t me = (size_t)argument, next = (me + 1) % THREADS, wrong = 0;
    for (int i = 0; i < HANDED; i++) {
        wrong += ta_marker_create(&handed[next][i], me * HANDED + (size_t)i + 1, 0) != TA_OK;
        __atomic_store_n(&ready[next], i + 1, __ATOMIC_RELEASE);
        while (__atomic_load_n(&ready[me], __ATOMIC_ACQUIRE) <= i)
            usleep(0);
        /* Another thread has created this one a moment ago. */
        uint64_t value = 0, expected = (me + THREADS - 1) % THREADS * HANDED + (size_t)i + 1;
        ta_marker marker = handed[me][i];
        wrong += ta_marker_add(marker, 1) != TA_OK;
        if (i % 3 == 0)
            wrong += ta_marker_value(marker, &value) != TA_OK || value != expected + 1;
        wrong += (i % 2 ? ta_marker_destroy(marker) : ta_marker_destroy_async(marker)) != TA_OK;
    }
    wrong += ta_noop() != TA_OK; /* nothing was deferred */
    return (void *)wrong;
}

static void threads(void) {
    pthread_t all[THREADS];
    size_t wrong = 0;
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, hand_on, (void *)i);
    for (size_t i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(all[i], &result);
        wrong += (size_t)result;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(ta_markers_live(), 0);
}

/* --- again and again ----------------------------------------------------------- */

static int cycles(int count) {
    ta_marker marker = NULL;
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        wrong += ta_marker_create(&marker, 1, 64) != TA_OK;
        wrong += (i % 16 ? ta_marker_destroy_async(marker) : ta_marker_destroy(marker)) != TA_OK;
    }
    wrong += ta_noop() != TA_OK;
    return wrong;
}

/* Where the session has moved, the library is in another process, whose memory is not compared with that of the first. */
static void level(int count) {
    int server = ta_process(), wrong = cycles(count / 2);
    long guest_before = resident(getpid()), server_before = resident(server);
    wrong += cycles(count / 2);
    long guest_grown = resident(getpid()) - guest_before, server_grown = resident(server) - server_before;
    int moved = ta_process() != server;
    CHECK_EQ(wrong, 0);
    CHECK(guest_before > 0 && (moved || server_before > 0));
    CHECK(guest_grown < 500);
    CHECK(moved || server_grown < 500);
    CHECK_EQ(ta_markers_live(), 0);
}

int main(int argc, char **argv) {
    one_by_one();
    other_shapes();
    threads();
    level(argc > 1 ? atoi(argv[1]) : 10000);
    return check_done();
}
