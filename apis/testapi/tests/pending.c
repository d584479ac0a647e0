/* Callbacks that are pending when the API server ends.
 * pending   registers them, prints its own and the library's process, and waits until the API server has been ended and each
 *           callback has been called. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

#define HOUR_MS 3600000u
#define ORDERED 30
#define THREADS 3
/* Callbacks of one thread in all, if the API server lives, and at the same time. */
#define MOST 200000
#define AT_ONCE 10

/* One registered callback. */
struct pending {
    _Atomic int times;
    int place; /* in the order of all calls */
    int32_t status;
    ta_event event;
    _Atomic int *done;
};

static _Atomic int called, later;
/* Held by the main thread in its calls, and needed by callbacks. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t callback_thread;

static void note(struct pending *pending, int32_t status, ta_event event) {
    pthread_mutex_lock(&lock);
    pending->status = status;
    pending->event = event;
    pending->place = atomic_fetch_add(&called, 1);
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&pending->times, 1);
    if (pending->done)
        atomic_fetch_add(pending->done, 1);
}

static void notified(ta_event event, ta_status status, void *context) {
    note(context, status, event);
}

static void noted_thread(ta_event event, ta_status status, void *context) {
    callback_thread = pthread_self();
    note(context, status, event);
}

/* The event is none of its own: any that the callback is given is wrong. */
static void reported(ta_report report, void *context) {
    note(context, ta_report_code(report), NULL);
    ta_report_free(report);
}

static void never(void *context) {
    atomic_fetch_add((_Atomic int *)context, 1);
}

/* Registers callbacks that are called soon until the API server is gone. */
struct racer {
    ta_event event;
    struct pending *registered[MOST];
    _Atomic int count, done;
};

static void *race(void *context) {
    struct racer *racer = context;
    while (racer->count < MOST) {
        struct pending *pending = calloc(1, sizeof *pending);
        pending->done = &racer->done;
        uint32_t milliseconds = (uint32_t)racer->count % 3;
        ta_status status = racer->count % 2 ? ta_event_notify(racer->event, milliseconds, notified, pending)
                                            : ta_event_post(racer->event, milliseconds, notified, pending);
        if (status != TA_OK)
            return pending;
        racer->registered[racer->count++] = pending;
        while (racer->count - racer->done > AT_ONCE)
            usleep(200);
    }
    return NULL;
}

static int wrong(const struct racer *racer) {
    int wrong = 0;
    for (int i = 0; i < racer->count; i++) {
        const struct pending *pending = racer->registered[i];
        wrong += pending->times != 1 || pending->event != racer->event
                 || (pending->status != TA_OK && pending->status != TA_DEVICE_LOST);
    }
    return wrong;
}

int main(void) {
    static struct pending ordered[ORDERED], after;
    static struct racer racers[THREADS];
    pthread_t threads[THREADS];
    ta_event event = NULL;
    ta_ledger ledger = NULL;
    if (ta_event_create(&event) || ta_ledger_create(1, &ledger) || ta_event_then(event, HOUR_MS, never, &later))
        return 2;
    for (int i = 0; i < ORDERED; i++) {
        int bad = i == 0       ? ta_event_notify(event, HOUR_MS, noted_thread, &ordered[i]) != TA_OK
                  : i % 3 == 0 ? ta_event_notify(event, HOUR_MS, notified, &ordered[i]) != TA_OK
                  : i % 3 == 1 ? ta_event_post(event, HOUR_MS, notified, &ordered[i]) != TA_OK
                               : ta_ledger_later(ledger, HOUR_MS, reported, &ordered[i]) != NULL;
        if (bad)
            return 2;
    }
    for (int i = 0; i < THREADS; i++)
        if (ta_event_create(&racers[i].event) || pthread_create(&threads[i], NULL, race, &racers[i]))
            return 2;
    for (int i = 0; i < THREADS; i++)
        while (racers[i].count < 20)
            usleep(1000);
    printf("holding %d %d\n", (int)getpid(), ta_process());
    fflush(stdout);
    ta_status status;
    do {
        pthread_mutex_lock(&lock);
        status = ta_noop();
        pthread_mutex_unlock(&lock);
        usleep(100);
    } while (status == TA_OK);
    CHECK_EQ(status, TA_DEVICE_LOST);

    int registered = ORDERED;
    for (int i = 0; i < THREADS; i++) {
        void *refused;
        pthread_join(threads[i], &refused);
        registered += racers[i].count;
        CHECK(refused != NULL);
        CHECK(((struct pending *)refused)->times == 0);
    }
    while (atomic_load(&called) < registered)
        usleep(1000);
    CHECK_EQ(ta_event_notify(event, 0, notified, &after), TA_DEVICE_LOST);
    CHECK_EQ(ta_event_post(event, 0, notified, &after), TA_DEVICE_LOST);
    ta_report report = ta_ledger_later(ledger, 0, reported, &after);
    CHECK_EQ(ta_report_code(report), TA_DEVICE_LOST);
    int misplaced = 0, misled = 0;
    for (int i = 0; i < ORDERED; i++) {
        ta_event given = i % 3 == 2 ? NULL : event;
        misled += ordered[i].times != 1 || ordered[i].status != TA_DEVICE_LOST || ordered[i].event != given;
        misplaced += i > 0 && ordered[i].place < ordered[i - 1].place;
    }
    CHECK_EQ(misled, 0);
    CHECK_EQ(misplaced, 0);
    CHECK(!pthread_equal(callback_thread, pthread_self()));
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(wrong(&racers[i]), 0);
    /* The callback of the thread that was registered first of all would have been called by now. */
    CHECK_EQ(later, 0);
    CHECK_EQ(after.times, 0);
    /* Nothing is called twice. */
    CHECK_EQ(called, registered);
    return check_done();
}
