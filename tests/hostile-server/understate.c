/* Says in the page of grants of an API server, 50,000 times a second until it is ended, that its session has used no device time and
 * has no work in flight: what native code in that API server can do. As root from outside, because the device whose own log says
 * who had it (apis/testapi) runs no native code.
 *
 *   understate PID     prints "writing" once it has found the page */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* crates/gate/src/grant_page.rs */
enum { SLOTS = 16, SLOT_BYTES = 256, TAKEN = 0, USED = 64, BUSY_SINCE = 72 };
/* Nanoseconds between two writes. */
enum { EACH = 20000 };

static char *grants(const char *pid)
{
    for (int descriptor = 0; descriptor < 1024; descriptor++) {
        char path[64], link[64];
        struct stat status;
        snprintf(path, sizeof path, "/proc/%s/fd/%d", pid, descriptor);
        ssize_t length = readlink(path, link, sizeof link - 1);
        if (length <= 0)
            continue;
        link[length] = 0;
        if (!strstr(link, "aviary-grants"))
            continue;
        int opened = open(path, O_RDWR | O_CLOEXEC);
        if (opened < 0 || fstat(opened, &status) || status.st_size < SLOTS * SLOT_BYTES)
            continue;
        void *page = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
        if (page != MAP_FAILED)
            return page;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char *page = argc > 1 ? grants(argv[1]) : NULL;

    if (!page)
        return fprintf(stderr, "understate: no page of grants\n"), 1;
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    puts("writing");
    fflush(stdout);
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    for (;;) {
        for (int slot = 0; slot < SLOTS; slot++) {
            char *words = page + slot * SLOT_BYTES;
            if (!*(_Atomic uint32_t *)(words + TAKEN))
                break;
            atomic_store((_Atomic uint64_t *)(words + BUSY_SINCE), 0);
            atomic_store((_Atomic uint64_t *)(words + USED), 0);
        }
        at.tv_nsec += EACH;
        if (at.tv_nsec >= 1000000000)
            at.tv_sec++, at.tv_nsec -= 1000000000;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
}
