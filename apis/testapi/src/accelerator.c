/* A device without hardware: time passes on it by the clock, so that many tenants can be scheduled on few cores. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
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

/* A wait that is longer looks now and then whether others have died, so that it is over sooner. */
#define GLANCE 10000000

/* Bytes of the file, far behind its end, of which each process has one locked while it lives. */
#define PROCESSES ((off_t)1 << 40)

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static ta_accelerator_file *device;
/* The device's file, and which byte this process has locked. Process ids would not do: API servers have PID namespaces of their
 * own. Without a file no other process has the device, but for forked children, which share the number. */
static int file = -1;
static uint32_t me = 1;
/* 1 + the number of this process's last record, or 0. */
static uint64_t last;

/* True if that process's byte was free; F_OFD_SETLK has then locked it. */
static bool is_free(int command, uint32_t process) {
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PROCESSES + process, .l_len = 1};
    return fcntl(file, command, &byte) == 0 && (command == F_OFD_SETLK || byte.l_type == F_UNLCK);
}

static void take_number(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    /* Numbers of processes that died come again late. 0 stands for none. */
    for (uint32_t tries = 0; tries < 1000; tries++) {
        me = ((uint32_t)t.tv_nsec + ((uint32_t)t.tv_sec << 10) + tries * 7919) | 1;
        if (is_free(F_OFD_SETLK, me))
            return;
    }
}

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
    file = fd;
    if (fd >= 0)
        take_number();
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static ta_accelerator_record *record(uint64_t number) { return &device->records[number % TA_ACCELERATOR_RECORDS]; }

static bool is_dead(uint32_t process) { return process != me && file >= 0 && is_free(F_OFD_GETLK, process); }

/* Held for microseconds; taken from a process that died with it. A record of that process may be half done: a record too many. */
static void lock(void) {
    for (uint64_t free = 0;
         !__atomic_compare_exchange_n(&device->lock, &free, me, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);) {
        /* `free` is now who has it. Threads of one process may wait for each other. */
        if (free == 0 || !is_dead((uint32_t)free)) {
            sched_yield();
            free = 0;
        }
    }
}

static void unlock(void) { __atomic_store_n(&device->lock, 0, __ATOMIC_SEQ_CST); }

/* Work that a process leaves behind on the device goes with it, as drivers do it; what others submitted comes sooner. */
static void drop_work_of_the_dead(uint64_t at) {
    uint64_t count = device->count, first = count;
    uint32_t checked = me;
    bool dead = false;
    for (; first > 0 && count - first < TA_ACCELERATOR_RECORDS && record(first - 1)->end > at; first--) {
        uint32_t process = record(first - 1)->process;
        if (process == checked)
            continue;
        checked = process;
        dead = dead || is_dead(process);
    }
    if (!dead)
        return;
    /* A process that died meanwhile is found the next time. */
    uint64_t free_at = at;
    for (uint64_t n = first; n < count; n++) {
        ta_accelerator_record *r = record(n);
        uint64_t time = r->end - r->begin, begin = r->begin <= at ? r->begin : free_at;
        uint64_t end = begin + time;
        if (r->process != me && is_dead(r->process))
            end = begin > at ? begin : at;
        __atomic_store_n(&r->begin, begin, __ATOMIC_SEQ_CST);
        __atomic_store_n(&r->end, end, __ATOMIC_SEQ_CST);
        free_at = end;
    }
    device->free_at = free_at;
}

ta_status ta_accelerator_submit(uint32_t client, uint64_t nanoseconds) {
    pthread_once(&opened, open_device);
    if (!device)
        return TA_OUT_OF_MEMORY;
    lock();
    uint64_t at = now();
    drop_work_of_the_dead(at);
    uint64_t begin = device->free_at > at ? device->free_at : at, number = device->count;
    *record(number) = (ta_accelerator_record){begin, begin + nanoseconds, client, me};
    __atomic_store_n(&device->count, number + 1, __ATOMIC_SEQ_CST);
    device->free_at = begin + nanoseconds;
    /* A forked child has submitted nothing yet, but waiting for its parent's work does no harm. */
    __atomic_store_n(&last, number + 1, __ATOMIC_SEQ_CST);
    unlock();
    return TA_OK;
}

/* When everything is done that this process submitted, as far as known. */
static uint64_t done_at(void) {
    uint64_t number = __atomic_load_n(&last, __ATOMIC_SEQ_CST);
    return number ? __atomic_load_n(&record(number - 1)->end, __ATOMIC_SEQ_CST) : 0;
}

ta_status ta_accelerator_finish(void) {
    static __thread uint64_t spin;
    if (!spin) {
        prctl(PR_SET_TIMERSLACK, 1L);
        spin = 50000;
    }
    /* Work that other threads submit from now on is not waited for. */
    uint64_t latest = done_at(), end = latest, at;
    /* A thread that polls the clock learns nothing of a sleeper's delay, and would never sleep again. */
    if (now() + SHORTEST_SPIN < end && now() + spin >= end)
        spin -= spin / 16;
    for (; (at = now()) + spin < end; end = done_at() < latest ? done_at() : latest) {
        uint64_t until = end - spin;
        bool glances = until > at + GLANCE;
        if (glances)
            until = at + GLANCE;
        struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
            ;
        if (glances) {
            lock();
            drop_work_of_the_dead(now());
            unlock();
            continue;
        }
        /* Follows a late wake-up at once and forgets it slowly. */
        uint64_t late = (now() - until) * 5 / 4;
        spin = late > spin ? late : spin - (spin - late) / 16;
        spin = spin < SHORTEST_SPIN ? SHORTEST_SPIN : spin > LONGEST_SPIN ? LONGEST_SPIN : spin;
        break;
    }
    while (now() < end)
        __builtin_ia32_pause();
    return TA_OK;
}
