/* Calls into the application: during a call, from library threads, re-entrant, with buffers. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static ta_device device;

static int32_t add_context(uint32_t index, void *context) {
    return (int32_t)index + *(int *)context;
}

static int32_t stop_at_three(uint32_t index, void *context) {
    (void)context;
    return index == 3 ? -1 : 1;
}

static int32_t call_the_api(uint32_t index, void *context) {
    ta_buffer buffer = context;
    uint8_t byte = (uint8_t)(index + 1), back = 0;
    if (ta_buffer_write(buffer, index, 1, &byte) != TA_OK || ta_buffer_read(buffer, index, 1, &back) != TA_OK)
        return -1;
    return ta_add(back, 1000);
}

static int32_t nest(uint32_t index, void *context) {
    int *depth = context;
    if (*depth == 0)
        return (int32_t)index;
    int below = *depth - 1;
    return (int32_t)ta_each(2, nest, &below) + 1;
}

static void during_a_call(void) {
    int base = 10, depth = 5;
    CHECK_EQ(ta_each(5, add_context, &base), 60);
    CHECK_EQ(ta_each(0, add_context, &base), 0);
    CHECK_EQ(ta_each(5, NULL, &base), -1);
    CHECK_EQ(ta_each(10, stop_at_three, NULL), 3);
    CHECK_EQ(ta_each(10000, add_context, &base), 50095000);

    ta_buffer buffer = NULL;
    uint8_t back[4];
    CHECK_EQ(ta_buffer_create(device, 4, &buffer), TA_OK);
    CHECK_EQ(ta_each(4, call_the_api, buffer), 4010);
    CHECK_EQ(ta_buffer_read(buffer, 0, 4, back), TA_OK);
    CHECK(back[0] == 1 && back[3] == 4);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_each(1, nest, &depth), 47);
}

struct seen {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int times;
    ta_event event;
    ta_status status;
    int32_t sum;
    int other_thread;
    pthread_t caller;
};

static void notified(ta_event event, ta_status status, void *context) {
    struct seen *seen = context;
    int32_t sum = ta_add(20, 22); /* the library may be called from here */
    pthread_mutex_lock(&seen->lock);
    seen->times++;
    seen->event = event;
    seen->status = status;
    seen->sum = sum;
    seen->other_thread = !pthread_equal(pthread_self(), seen->caller);
    pthread_cond_signal(&seen->changed);
    pthread_mutex_unlock(&seen->lock);
}

static void from_another_thread(void) {
    struct seen seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER,
                        .status = TA_INVALID_VALUE, .caller = pthread_self()};
    ta_event event = NULL;
    CHECK_EQ(ta_event_create(&event), TA_OK);
    for (int round = 1; round <= 3; round++) {
        CHECK_EQ(ta_event_notify(event, 5, notified, &seen), TA_OK);
        pthread_mutex_lock(&seen.lock);
        while (seen.times < round)
            pthread_cond_wait(&seen.changed, &seen.lock);
        pthread_mutex_unlock(&seen.lock);
    }
    CHECK(seen.event == event);
    CHECK_EQ(seen.status, TA_OK);
    CHECK_EQ(seen.sum, 42);
    CHECK(seen.other_thread);
    CHECK_EQ(ta_event_notify(event, 5, NULL, &seen), TA_INVALID_VALUE);
    /* While this thread is in a call of its own. */
    CHECK_EQ(ta_event_notify(event, 5, notified, &seen), TA_OK);
    CHECK_EQ(ta_work(40000), TA_OK);
    pthread_mutex_lock(&seen.lock);
    while (seen.times < 4)
        pthread_cond_wait(&seen.changed, &seen.lock);
    pthread_mutex_unlock(&seen.lock);
    CHECK_EQ(ta_event_release(event), TA_OK);
}

/* Uses the event that the application has released meanwhile. */
static void uses_the_event(ta_event event, ta_status status, void *context) {
    struct seen *seen = context;
    uint64_t sum = 0;
    if (ta_events_sum(1, &event, &sum) == TA_OK)
        notified(event, status == TA_OK ? (ta_status)sum : status, seen);
    else
        notified(NULL, TA_INVALID_EVENT, seen);
}

static void with_a_released_object(void) {
    struct seen seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER,
                        .status = TA_INVALID_VALUE, .caller = pthread_self()};
    for (int round = 1; round <= 20; round++) {
        ta_event event = NULL;
        CHECK_EQ(ta_event_create(&event), TA_OK);
        CHECK_EQ(ta_event_signal(event, (uint64_t)round), TA_OK);
        CHECK_EQ(ta_event_post(event, round % 3, uses_the_event, &seen), TA_OK);
        CHECK_EQ(ta_event_release(event), TA_OK);
        pthread_mutex_lock(&seen.lock);
        while (seen.times < round)
            pthread_cond_wait(&seen.changed, &seen.lock);
        pthread_mutex_unlock(&seen.lock);
        CHECK(seen.event == event);
        CHECK_EQ(seen.status, round);
        CHECK(seen.other_thread);
    }
    ta_event event = NULL;
    CHECK_EQ(ta_event_create(&event), TA_OK);
    CHECK_EQ(ta_event_post(event, 0, NULL, NULL), TA_INVALID_VALUE);
    CHECK_EQ(ta_event_release(event), TA_OK);
    CHECK_EQ(ta_event_post(NULL, 0, uses_the_event, &seen), TA_INVALID_EVENT);
}

static void one_more(void *context) {
    atomic_fetch_add((_Atomic int *)context, 1);
}

static void once_each(void) {
    _Atomic int done = 0;
    ta_event event = NULL;
    CHECK_EQ(ta_event_create(&event), TA_OK);
    for (int n = 0; n < 5; n++)
        CHECK_EQ(ta_event_then(event, 1, one_more, &done), TA_OK);
    while (atomic_load(&done) < 5)
        usleep(1000);
    CHECK_EQ(ta_event_then(event, 1, NULL, &done), TA_INVALID_VALUE);
    CHECK_EQ(ta_event_release(event), TA_OK);
    CHECK_EQ(done, 5);
}

static void keep(const char *message, void *context) {
    char *log = context;
    strncat(log, message, 200);
    strcat(log, ";");
}

static void coupled(void) {
    char log[512] = "", other[512] = "";
    ta_device own = NULL, second = NULL;
    CHECK_EQ(ta_device_open("talks", &own), TA_OK);
    CHECK_EQ(ta_device_open("talks too", &second), TA_OK);
    CHECK_EQ(ta_device_say(own, "nobody hears"), TA_OK);
    CHECK_EQ(ta_device_log(own, keep, log), TA_OK);
    CHECK_EQ(ta_device_log(second, keep, other), TA_OK);
    CHECK_EQ(ta_device_say(own, "first"), TA_OK);
    CHECK_EQ(ta_device_say(second, "its own"), TA_OK);
    CHECK_EQ(ta_device_say(own, "second"), TA_OK);
    CHECK(strcmp(log, "first;second;") == 0);
    CHECK(strcmp(other, "its own;") == 0);
    CHECK_EQ(ta_device_log(own, NULL, NULL), TA_OK);
    CHECK_EQ(ta_device_say(own, "third"), TA_OK);
    CHECK(strcmp(log, "first;second;") == 0);
    CHECK_EQ(ta_device_close(own), TA_OK);
    CHECK_EQ(ta_device_close(second), TA_OK);
}

static uint32_t invert(const uint8_t *from, uint8_t *to, size_t bytes, int32_t *state, void *context) {
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)~from[i];
    *state += 1;
    *(int *)context += 1;
    return (uint32_t)bytes;
}

static void buffers(void) {
    static uint8_t from[25000], to[25000];
    uint64_t total = 0;
    int pieces = 0;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 3);
    CHECK_EQ(ta_filter_run(from, to, sizeof from, invert, &pieces, &total), TA_OK);
    CHECK_EQ(pieces, 25);
    CHECK_EQ(total, 25025);
    CHECK(to[0] == 0xff && (to[24999] ^ from[24999]) == 0xff);
    CHECK_EQ(ta_filter_run(from, to, 10, NULL, NULL, &total), TA_INVALID_VALUE);
}

int main(void) {
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    during_a_call();
    from_another_thread();
    with_a_released_object();
    once_each();
    coupled();
    buffers();
    CHECK_EQ(ta_device_close(device), TA_OK);
    return check_done();
}
