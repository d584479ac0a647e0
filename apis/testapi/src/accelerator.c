/* A device without hardware: time passes on it by the clock, so that many tenants can be scheduled on few cores. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "testapi.h"

#define BYTES (sizeof(ta_accelerator_file) + sizeof(ta_accelerator_record) * TA_ACCELERATOR_RECORDS)
/* A sleeper wakes up late, by how much depends on the machine: the rest of a wait is spent looking at the clock. */
#define SHORTEST_SPIN 10000
#define LONGEST_SPIN 300000

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static ta_accelerator_file *device;
/* When everything is done that this process submitted. */
static uint64_t done_at;

static void open_device(void) {
    const char *name = getenv("TESTAPI_ACCELERATOR");
    int flags = MAP_SHARED | MAP_NORESERVE, fd = -1;
    if (name && *name) {
        fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 || ftruncate(fd, BYTES))
            return;
    } else {
        flags |= MAP_ANONYMOUS;
    }
    void *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (mapped != MAP_FAILED)
        device = mapped;
    if (fd >= 0)
        close(fd);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What a process leaves behind on the device goes with it, as drivers do it. What others submitted after it goes, too:
   that needs a device that several processes give work at a time. */
static void drop_work_of_the_dead(void) {
    uint64_t at = now(), free_at = __atomic_load_n(&device->free_at, __ATOMIC_SEQ_CST);
    pid_t owner = (pid_t)__atomic_load_n(&device->owner, __ATOMIC_SEQ_CST);
    if (free_at <= at || owner == 0 || owner == getpid() || kill(owner, 0) == 0 || errno != ESRCH)
        return;
    if (!__atomic_compare_exchange_n(&device->free_at, &free_at, at, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    for (uint64_t count = __atomic_load_n(&device->count, __ATOMIC_SEQ_CST), back = 1; back <= count; back++) {
        ta_accelerator_record *record = &device->records[(count - back) % TA_ACCELERATOR_RECORDS];
        if (back > TA_ACCELERATOR_RECORDS || record->end <= at)
            return;
        record->end = record->begin > at ? record->begin : at;
    }
}

ta_status ta_accelerator_submit(uint32_t client, uint64_t nanoseconds) {
    pthread_once(&opened, open_device);
    if (!device)
        return TA_OUT_OF_MEMORY;
    drop_work_of_the_dead();
    uint64_t begin, end, free_at = __atomic_load_n(&device->free_at, __ATOMIC_SEQ_CST);
    do {
        uint64_t at = now();
        begin = free_at > at ? free_at : at;
        end = begin + nanoseconds;
    } while (!__atomic_compare_exchange_n(&device->free_at, &free_at, end, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    __atomic_store_n(&device->owner, (uint64_t)getpid(), __ATOMIC_SEQ_CST);
    uint64_t place = __atomic_fetch_add(&device->count, 1, __ATOMIC_SEQ_CST) % TA_ACCELERATOR_RECORDS;
    device->records[place] = (ta_accelerator_record){begin, end, client};
    uint64_t before = __atomic_load_n(&done_at, __ATOMIC_SEQ_CST);
    while (before < end && !__atomic_compare_exchange_n(&done_at, &before, end, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return TA_OK;
}

ta_status ta_accelerator_finish(void) {
    uint64_t end = __atomic_load_n(&done_at, __ATOMIC_SEQ_CST);
    static __thread uint64_t spin;
    if (!spin) {
        prctl(PR_SET_TIMERSLACK, 1L);
        spin = 50000;
    }
    if (now() + spin < end) {
        uint64_t until = end - spin;
        struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
            ;
        /* Follows a late wake-up at once and forgets it slowly. */
        uint64_t late = (now() - until) * 5 / 4;
        spin = late > spin ? late : spin - (spin - late) / 16;
        spin = spin < SHORTEST_SPIN ? SHORTEST_SPIN : spin > LONGEST_SPIN ? LONGEST_SPIN : spin;
    }
    while (now() < end)
        __builtin_ia32_pause();
    return TA_OK;
}
