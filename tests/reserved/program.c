/* A program of which a test counts what its address space costs: program WHEN [LARGE]
 * WHEN: `before` or `after` the first call it locks its memory; `abort`: it crashes; `plain`: neither.
 * LARGE: it moves so many MiB at a time, once, before the rest.
 * Prints, in MiB: resident memory, pages of Aviary's files, and what a core dump may hold at most. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testapi.h"

#define MIB ((size_t)1 << 20)
#define BYTES (64 * MIB)

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(2);
    }
}

static void move(ta_device device, size_t bytes) {
    unsigned char *data = malloc(bytes);
    ta_buffer buffer = NULL;
    must(data != NULL, "malloc");
    memset(data, 7, bytes);
    must(ta_buffer_create(device, bytes, &buffer) == TA_OK, "ta_buffer_create");
    must(ta_buffer_write(buffer, 0, bytes, data) == TA_OK, "ta_buffer_write");
    data[bytes - 1] = 0;
    must(ta_buffer_read(buffer, 0, bytes, data) == TA_OK, "ta_buffer_read");
    must(data[bytes - 1] == 7, "the data");
    must(ta_buffer_destroy(buffer) == TA_OK, "ta_buffer_destroy");
    free(data);
}

/* Bytes of the files in memory that mappings of this process show. */
static size_t file_bytes(void) {
    size_t sum = 0;
    char name[64], target[64];
    struct stat found;
    DIR *files = opendir("/proc/self/fd");
    must(files != NULL, "/proc/self/fd");
    for (struct dirent *file; (file = readdir(files));) {
        snprintf(name, sizeof name, "/proc/self/fd/%.16s", file->d_name);
        ssize_t length = readlink(name, target, sizeof target - 1);
        if (length > 0 && strncmp(target, "/memfd:aviary-", 14) == 0 && stat(name, &found) == 0)
            sum += (size_t)found.st_blocks * 512;
    }
    closedir(files);
    return sum;
}

/* Resident bytes, and those of mappings that are not left out of dumps: all of shared memory, what was written of other. */
static void count(size_t *resident, size_t *dumped) {
    char line[512], rights[5] = "";
    size_t from, to, kb, size = 0, rss = 0, written = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    must(maps != NULL, "/proc/self/smaps");
    *resident = *dumped = 0;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%zx-%zx %4s", &from, &to, rights) == 3)
            size = to - from;
        else if (sscanf(line, "Rss: %zu", &kb) == 1)
            rss = kb * 1024;
        else if (sscanf(line, "Private_Dirty: %zu", &kb) == 1)
            written = kb * 1024;
        else if (strncmp(line, "VmFlags:", 8) == 0) {
            *resident += rss;
            if (!strstr(line, " dd"))
                *dumped += rights[3] == 's' ? size : written;
        }
    }
    fclose(maps);
}

int main(int count_of, char **arguments) {
    const char *when = count_of > 1 ? arguments[1] : "plain";
    size_t large = count_of > 2 ? (size_t)atol(arguments[2]) : 0, resident, dumped;
    ta_device device = NULL;
    if (strcmp(when, "before") == 0)
        must(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall");
    must(ta_device_open("reserved", &device) == TA_OK, "ta_device_open");
    if (large)
        move(device, large * MIB);
    move(device, BYTES);
    if (strcmp(when, "after") == 0) {
        must(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall");
        move(device, BYTES);
    }
    count(&resident, &dumped);
    printf("%zu %zu %zu\n", resident / MIB, file_bytes() / MIB, dumped / MIB);
    fflush(stdout);
    if (strcmp(when, "abort") == 0)
        abort();
    return 0;
}
