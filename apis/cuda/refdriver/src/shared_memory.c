/* The memory of devices. With REFCUDA_MEMORY=FILE:BYTES all processes that name the file have so many bytes of each device together,
 * as those have that share a card; what a process that dies has is free again. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

enum { PROCESSES = 256 };

/* What each process has of each device, by the devices' numbers. */
struct uses {
    uint64_t used[PROCESSES][DEVICE_MAXIMUM];
};

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static struct uses *uses;
static int file = -1, me = -1;

/* A lock of one byte behind the table: number 0 guards it, and each process has one of the others while it lives. */
static bool lock_byte(int command, int number, short type)
{
    struct flock byte = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)sizeof(struct uses) + number, .l_len = 1};
    int done = fcntl(file, command, &byte);

    return done == 0 && (command != F_OFD_GETLK || byte.l_type == F_UNLCK);
}

static bool open_shared(const char *name)
{
    void *mapped = MAP_FAILED;

    file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file >= 0 && ftruncate(file, sizeof(struct uses)) == 0)
        mapped = mmap(NULL, sizeof(struct uses), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (int number = 0; mapped != MAP_FAILED && number < PROCESSES && me < 0; number++)
        if (lock_byte(F_OFD_SETLK, number + 1, F_WRLCK))
            me = number;
    if (me < 0)
        return false;
    uses = mapped;
    /* Of one that died. */
    memset(uses->used[me], 0, sizeof(uses->used[me]));
    return true;
}

bool shared_memory_start(const char *text, size_t *bytes)
{
    const char *end = text ? strrchr(text, ':') : NULL;
    char name[4096];

    *bytes = text ? strtoull(end ? end + 1 : text, NULL, 0) : (size_t)8 << 30;
    if (!end)
        return true;
    if (end == text || (size_t)(end - text) >= sizeof(name))
        return false;
    memcpy(name, text, (size_t)(end - text));
    name[end - text] = 0;
    return uses || open_shared(name);
}

/* With the locks: what other processes have. */
static size_t used_by_others(int number)
{
    size_t sum = 0;

    for (int process = 0; process < PROCESSES; process++) {
        if (process == me || !uses->used[process][number])
            continue;
        if (lock_byte(F_OFD_GETLK, process + 1, F_WRLCK))
            memset(uses->used[process], 0, sizeof(uses->used[process]));
        sum += uses->used[process][number];
    }
    return sum;
}

/* Adds what this process takes, if there is so much. Answers what is free then, or at all. */
static size_t change(struct device *device, long long bytes, bool *fits)
{
    size_t used, available;

    pthread_mutex_lock(&threads);
    while (uses && !lock_byte(F_OFD_SETLKW, 0, F_WRLCK))
        ;
    used = device->used + (uses ? used_by_others(device->number) : 0);
    available = used < device->memory ? device->memory - used : 0;
    *fits = bytes <= 0 || (size_t)bytes <= available;
    if (*fits) {
        device->used += (size_t)bytes;
        available -= (size_t)bytes;
    }
    if (uses) {
        uses->used[me][device->number] = device->used;
        lock_byte(F_OFD_SETLK, 0, F_UNLCK);
    }
    pthread_mutex_unlock(&threads);
    return available;
}

bool device_take(struct device *device, size_t bytes)
{
    bool fits = bytes <= device->memory;

    if (fits)
        change(device, (long long)bytes, &fits);
    return fits;
}

void device_give(struct device *device, size_t bytes)
{
    bool fits;

    change(device, -(long long)bytes, &fits);
}

size_t device_available(struct device *device)
{
    bool fits;

    return change(device, 0, &fits);
}
