/* Order across threads: what returned in one thread is seen by what another calls afterwards. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "testapi.h"

#define WORKERS 8
static uint64_t handoffs = 100000;

/* The baton: an asynchronous write by one thread, then a synchronous read by the other. */
static _Atomic uint64_t baton;
static _Atomic uint64_t disorder;

static void wait_for(uint64_t value) {
    for (unsigned spins = 0; atomic_load(&baton) < value; spins++)
        if (spins > 100)
            sched_yield();
}

static void *reader(void *unused) {
    (void)unused;
    for (uint64_t i = 1; i <= handoffs; i++) {
        wait_for(2 * i - 1);
        if (ta_mark() != i)
            atomic_fetch_add(&disorder, 1);
        atomic_store(&baton, 2 * i);
    }
    return NULL;
}

static void hand_over(void) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, reader, NULL), 0);
    for (uint64_t i = 1; i <= handoffs; i++) {
        ta_mark_async(i);
        atomic_store(&baton, 2 * i - 1);
        wait_for(2 * i);
    }
    pthread_join(thread, NULL);
    CHECK_EQ(atomic_load(&disorder), 0);
}

/* Asynchronous in both threads, alternately: the library sees them in the order of the baton. */
static void *second_half(void *unused) {
    (void)unused;
    for (uint32_t i = 0; i < 10000; i++) {
        wait_for(2 * i + 1);
        ta_trail_async(2 * i + 1);
        atomic_store(&baton, 2 * i + 2);
    }
    return NULL;
}

static void interleave(void) {
    static uint32_t trail[20000];
    size_t count = 0;
    int ordered = 1;
    pthread_t thread;
    atomic_store(&baton, 0);
    CHECK_EQ(pthread_create(&thread, NULL, second_half, NULL), 0);
    for (uint32_t i = 0; i < 10000; i++) {
        ta_trail_async(2 * i);
        atomic_store(&baton, 2 * i + 1);
        wait_for(2 * i + 2);
    }
    pthread_join(thread, NULL);
    CHECK_EQ(ta_trail_read(trail, 20000, &count), TA_OK);
    CHECK_EQ(count, 20000);
    for (uint32_t i = 0; i < count; i++)
        ordered &= trail[i] == i;
    CHECK(ordered);
}

/* Everybody at once, each on objects of its own. */
static void *worker(void *argument) {
    uintptr_t id = (uintptr_t)argument, wrong = 0;
    unsigned char data[5000], back[5000];
    ta_device device = NULL;
    wrong += ta_device_open("worker", &device) != TA_OK;
    for (int round = 0; round < 200; round++) {
        ta_buffer buffer = NULL;
        memset(data, (int)(id * 31 + (uintptr_t)round), sizeof data);
        wrong += ta_buffer_create(device, sizeof data, &buffer) != TA_OK;
        wrong += ta_buffer_fill(buffer, 0) != TA_OK;
        wrong += ta_buffer_write(buffer, 0, sizeof data, data) != TA_OK;
        wrong += ta_buffer_read(buffer, 0, sizeof back, back) != TA_OK;
        wrong += memcmp(data, back, sizeof data) != 0;
        wrong += ta_buffer_destroy(buffer) != TA_OK;
    }
    wrong += ta_device_close(device) != TA_OK;
    return (void *)wrong;
}

static void together(void) {
    pthread_t threads[WORKERS];
    uintptr_t wrong = 0;
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, worker, (void *)i), 0);
    for (int i = 0; i < WORKERS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        wrong += (uintptr_t)result;
    }
    CHECK_EQ(wrong, 0);
}

/* Threads that come and go: their lanes are given back. */
static void *one_call(void *unused) {
    (void)unused;
    return (void *)(intptr_t)ta_add(1, 2);
}

static void short_lived(void) {
    intptr_t wrong = 0;
    for (int i = 0; i < 500; i++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, one_call, NULL) == 0)
            pthread_join(thread, &result);
        wrong += (intptr_t)result != 3;
    }
    CHECK_EQ(wrong, 0);
}

int main(int argc, char **argv) {
    if (argc > 1)
        handoffs = strtoull(argv[1], NULL, 10);
    hand_over();
    interleave();
    together();
    short_lived();
    return check_done();
}
