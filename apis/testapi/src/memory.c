#define _GNU_SOURCE
#include "memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PROCESSES 256
/* Where a buffer has pages of its own. */
#define PAGED 4096

/* What each process has, and the most that all of them had at a time. */
struct uses {
    uint64_t used[PROCESSES], most;
};

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static struct uses *uses;
static uint64_t all;
static int me = -1;
static bool keeps;

/* A lock of one byte behind the table: number 0 guards it, and each process has one of the others while it lives. */
static bool lock_byte(int command, int number, short type) {
    struct flock byte = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)sizeof(struct uses) + number, .l_len = 1};
    int done = fcntl(file, command, &byte);
    return done == 0 && (command != F_OFD_GETLK || byte.l_type == F_UNLCK);
}

/* By another lock, of which the kernel tells whose it is, wherever that process is. */
static struct flock owner_byte(int number) {
    off_t start = (off_t)sizeof(struct uses) + 1 + PROCESSES + number;
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
}

static void open_memory(void) {
    const char *keeping = getenv("TESTAPI_KEEPS");
    keeps = keeping && *keeping == '1';
    const char *text = getenv("TESTAPI_MEMORY"), *end = text ? strrchr(text, ':') : NULL;
    char name[4096];
    if (!end || end == text || (size_t)(end - text) >= sizeof name)
        return;
    memcpy(name, text, (size_t)(end - text));
    name[end - text] = 0;
    all = strtoull(end + 1, NULL, 10);
    file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return;
    void *mapped = MAP_FAILED;
    if (ftruncate(file, sizeof(struct uses)) == 0)
        mapped = mmap(NULL, sizeof(struct uses), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        return;
    for (int number = 0; number < PROCESSES && me < 0; number++)
        if (lock_byte(F_OFD_SETLK, number + 1, F_WRLCK))
            me = number;
    if (me < 0)
        return;
    struct flock owner = owner_byte(me);
    fcntl(file, F_SETLK, &owner);
    uses = mapped;
    /* Of one that died. */
    uses->used[me] = 0;
}

/* Changes what this process has. False: there is not so much. */
static bool take(int64_t bytes) {
    pthread_once(&opened, open_memory);
    if (!uses)
        return true;
    bool fits = true;
    pthread_mutex_lock(&threads);
    while (!lock_byte(F_OFD_SETLKW, 0, F_WRLCK))
        ;
    uint64_t sum = uses->used[me] + (uint64_t)bytes;
    for (int number = 0; number < PROCESSES; number++) {
        if (number == me || !uses->used[number])
            continue;
        if (lock_byte(F_OFD_GETLK, number + 1, F_WRLCK))
            uses->used[number] = 0;
        sum += uses->used[number];
    }
    fits = bytes <= 0 || sum <= all;
    if (fits) {
        uses->used[me] += (uint64_t)bytes;
        uses->most = sum > uses->most ? sum : uses->most;
    }
    lock_byte(F_OFD_SETLK, 0, F_UNLCK);
    pthread_mutex_unlock(&threads);
    return fits;
}

void *memory_new(size_t bytes) {
    if (bytes > INT64_MAX || !take((int64_t)bytes))
        return NULL;
    if (bytes < PAGED) {
        void *at = calloc(1, bytes);
        if (!at)
            take(-(int64_t)bytes);
        return at;
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        take(-(int64_t)bytes);
        return NULL;
    }
    return at;
}

void memory_end(void *at, size_t bytes) {
    if (bytes < PAGED)
        free(at);
    else
        munmap(at, bytes);
    take(-(int64_t)bytes);
}

void memory_leave(void *at, size_t bytes) {
    if (keeps)
        return;
    if (bytes < PAGED) {
        memset(at, 0xee, bytes);
    } else {
        madvise(at, bytes, MADV_DONTNEED);
        mprotect(at, bytes, PROT_NONE);
    }
    take(-(int64_t)bytes);
}

bool memory_return(void *at, size_t bytes) {
    if (keeps)
        return true;
    if (!take((int64_t)bytes))
        return false;
    if (bytes >= PAGED && mprotect(at, bytes, PROT_READ | PROT_WRITE)) {
        take(-(int64_t)bytes);
        return false;
    }
    return true;
}

void ta_memory_holders(void (*tell)(void *context, uint64_t process, uint64_t bytes), void *context) {
    pthread_once(&opened, open_memory);
    for (int number = 0; uses && number < PROCESSES; number++) {
        struct flock owner = owner_byte(number);
        if (number != me && fcntl(file, F_GETLK, &owner) == 0 && owner.l_type != F_UNLCK && owner.l_pid > 0)
            tell(context, (uint64_t)owner.l_pid, uses->used[number]);
    }
}
