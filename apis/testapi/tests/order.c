/* Order across threads, at length: a baton goes through four threads; the thread that has it makes one call, which
 * returns before the baton goes on. The library must see the calls in the order of the baton. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "testapi.h"

#define THREADS 4
/* Some calls wait for their answer; the others are only issued. */
#define SYNCHRONOUS 64

static uint64_t handoffs = 1000000;
static uint64_t disorder;

/* The number of the call that a thread makes next; 0: not its turn. */
static struct {
    _Alignas(128) _Atomic uint64_t number;
} turns[THREADS];

/* Always another thread than `from`, but in no simple order. */
static unsigned next_thread(uint64_t number, unsigned from) {
    uint64_t mixed = (number * 0x9e3779b97f4a7c15u) >> 40;
    return (from + 1 + (unsigned)(mixed % (THREADS - 1))) % THREADS;
}

static uint64_t take_turn(unsigned me) {
    uint64_t number;
    for (unsigned spins = 0; !(number = atomic_load_explicit(&turns[me].number, memory_order_acquire)); spins++)
        if (spins > 100)
            sched_yield();
    atomic_store_explicit(&turns[me].number, 0, memory_order_relaxed);
    return number;
}

static void *runner(void *argument) {
    unsigned me = (unsigned)(uintptr_t)argument;
    for (;;) {
        uint64_t number = take_turn(me);
        if (number > handoffs) {
            /* The end goes round once. */
            if (number < handoffs + THREADS)
                atomic_store_explicit(&turns[(me + 1) % THREADS].number, number + 1, memory_order_release);
            return NULL;
        }
        if (number % SYNCHRONOUS == 0 || number == handoffs)
            disorder = ta_baton(number);
        else
            ta_baton_async(number);
        unsigned next = number == handoffs ? (me + 1) % THREADS : next_thread(number, me);
        atomic_store_explicit(&turns[next].number, number + 1, memory_order_release);
    }
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    if (argc > 1)
        handoffs = strtoull(argv[1], NULL, 10);
    for (uintptr_t t = 0; t < THREADS; t++)
        CHECK_EQ(pthread_create(&threads[t], NULL, runner, (void *)t), 0);
    atomic_store_explicit(&turns[0].number, 1, memory_order_release);
    for (unsigned t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    CHECK_EQ(disorder, 0);
    return check_done();
}
