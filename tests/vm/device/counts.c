/* In a VM: what synchronous calls cost while both sides are awake, by the driver's counters of this session.
 *   counts ROUNDS CALLS       a line for each round of calls, then one for a call after a second of sleep:
 *                             "KICKS SLEEPS REQUESTS" of that many calls
 *   counts between ROUNDS CALLS     calls between two system calls that fail, which strace shows */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../../../guest-driver/linux/aviary.h"
#include "testapi.h"

static int session = -1;

/* The guest library has it open. */
static void find_session(void) {
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], target[300] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) > 0 && !strcmp(target, "/dev/aviary"))
            session = atoi(entry->d_name);
    }
    if (folder)
        closedir(folder);
}

static struct aviary_counters counters(void) {
    struct aviary_counters now;
    if (ioctl(session, AVIARY_COUNTERS, &now)) {
        perror("AVIARY_COUNTERS");
        exit(1);
    }
    return now;
}

static void call(long calls) {
    for (long i = 0; i < calls; i++)
        if (ta_noop() != TA_OK)
            exit(1);
}

static void measure(long calls) {
    struct aviary_counters before = counters();
    call(calls);
    struct aviary_counters after = counters();
    printf("%llu %llu %llu\n", (unsigned long long)(after.kicks - before.kicks),
           (unsigned long long)(after.sleeps - before.sleeps), (unsigned long long)(after.requests - before.requests));
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    long rounds = atol(argv[argc - 2]), calls = atol(argv[argc - 1]);
    call(2000);
    if (!strcmp(argv[1], "between")) {
        for (; rounds > 0; rounds--) {
            close(-77);
            call(calls);
            close(-78);
        }
        return 0;
    }
    find_session();
    for (; rounds > 0; rounds--)
        measure(calls);
    for (int i = 0; i < 5; i++) {
        sleep(1);
        measure(1);
    }
    return 0;
}
