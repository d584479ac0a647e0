// The driver's counters of this process' session.
#include "../../guest-driver/linux/aviary.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// The guest library has /dev/aviary open; its first descriptor will do, others are copies.
static int session_file(void) {
    DIR *files = opendir("/proc/self/fd");
    struct dirent *entry;
    int found = -1;
    while (files && found < 0 && (entry = readdir(files))) {
        char name[300], target[PATH_MAX];
        snprintf(name, sizeof name, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(name, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        if (!strcmp(target, "/dev/aviary")) found = atoi(entry->d_name);
    }
    if (files) closedir(files);
    return found;
}

static struct aviary_counters session_counters(void) {
    static int file = -1;
    struct aviary_counters counters;
    if (file < 0) file = session_file();
    if (file < 0 || ioctl(file, AVIARY_COUNTERS, &counters)) {
        fprintf(stderr, "this process has no session of /dev/aviary\n");
        exit(1);
    }
    return counters;
}

// The measuring program says when to go on. Byte by byte: the rest of the input is for others.
static void wait_for_line(void) {
    char letter = 0;
    while (letter != '\n')
        if (read(0, &letter, 1) != 1) exit(1);
}
