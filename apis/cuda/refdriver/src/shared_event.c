/* Events of several processes. What is known of one lies in a file of the process that made it, which others map: how often
 * it was recorded, by all of them, and which of these records are complete. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "stream.h"

/* The most records of one event that can be under way. */
enum { RECORDS = 4096 };

/* A handle, and how the file begins. A number of a file may stand for another one later, and then its identity differs. */
struct handle {
    char mark[8];
    int process, file;
    uint64_t identity;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcEventHandle), "a handle fits");

static const char mark[8] = "refcuev";

/* Record `number` is in `records[number % RECORDS]`, and made only when the one that was there is reached. */
struct content {
    struct handle handle;
    uint64_t recorded;
    struct {
        uint64_t complete; /* the last number */
        uint64_t author;   /* the process that makes the next, and above that the low half of that number */
    } records[RECORDS];
};

struct shared_event {
    struct content *content;
    int file; /* -1: another process's, or destroyed */
};

static struct content *map(int file)
{
    void *content = mmap(NULL, sizeof(struct content), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    return content == MAP_FAILED ? NULL : content;
}

static bool fill(struct shared_event *event)
{
    struct handle handle = {.process = getpid(), .file = event->file};

    if (ftruncate(event->file, sizeof(*event->content)) != 0 || getrandom(&handle.identity, sizeof(handle.identity), 0) != sizeof(handle.identity))
        return false;
    event->content = map(event->file);
    if (!event->content)
        return false;
    memcpy(handle.mark, mark, sizeof(mark));
    event->content->handle = handle;
    return true;
}

struct shared_event *shared_event_new(void)
{
    struct shared_event *event = calloc(1, sizeof(*event));

    if (!event)
        return NULL;
    event->file = memfd_create("refdriver event", MFD_CLOEXEC);
    if (event->file >= 0 && fill(event))
        return event;
    shared_event_close(event);
    free(event);
    return NULL;
}

void shared_event_close(struct shared_event *event)
{
    if (event->file >= 0)
        close(event->file);
    event->file = -1;
}

void shared_event_end(struct shared_event *event)
{
    shared_event_close(event);
    munmap(event->content, sizeof(*event->content));
    free(event);
}

/* --- records --- */

static uint64_t loaded(const uint64_t *number) { return __atomic_load_n(number, __ATOMIC_SEQ_CST); }

uint64_t shared_event_latest(const struct shared_event *event) { return loaded(&event->content->recorded); }

/* Work that an ended process had not done will not be done. */
static bool is_given_up(uint64_t author, uint64_t number)
{
    return author >> 32 == (uint32_t)number && kill((pid_t)(uint32_t)author, 0) != 0 && errno == ESRCH;
}

static bool is_reached(const struct content *content, uint64_t number)
{
    return loaded(&content->records[number % RECORDS].complete) >= number || is_given_up(loaded(&content->records[number % RECORDS].author), number);
}

static uint64_t record(struct content *content)
{
    uint64_t number, before = loaded(&content->recorded);

    do {
        number = before + 1;
        if (number > RECORDS && !is_reached(content, number - RECORDS))
            return 0;
    } while (!__atomic_compare_exchange_n(&content->recorded, &before, number, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    __atomic_store_n(&content->records[number % RECORDS].author, number << 32 | (uint32_t)getpid(), __ATOMIC_SEQ_CST);
    return number;
}

bool shared_event_submit(struct operation *operation)
{
    bool records = operation->kind == OPERATION_RECORD, waits = operation->kind == OPERATION_WAIT;
    struct shared_event *shared = records || waits ? operation->event->shared : NULL;

    if (!shared)
        return true;
    operation->record = records ? record(shared->content) : shared_event_latest(shared);
    return waits || operation->record;
}

void shared_event_complete(const struct operation *operation)
{
    struct shared_event *shared = operation->kind == OPERATION_RECORD ? operation->event->shared : NULL;

    if (shared)
        __atomic_store_n(&shared->content->records[operation->record % RECORDS].complete, operation->record, __ATOMIC_SEQ_CST);
}

bool shared_event_reached(const struct shared_event *event, uint64_t number) { return is_reached(event->content, number); }

void shared_event_pause(void)
{
    const struct timespec pause = {.tv_nsec = 20000};

    nanosleep(&pause, NULL);
}

/* --- the driver's functions --- */

CUresult cuIpcGetEventHandle(CUipcEventHandle *result, CUevent handle)
{
    CUevent event = object_check(handle, KIND_EVENT);

    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (!event || !event->shared || event->shared->file < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    memset(result, 0, sizeof(*result));
    memcpy(result, &event->shared->content->handle, sizeof(struct handle));
    return CUDA_SUCCESS;
}

static struct shared_event *open_shared(const struct handle *handle)
{
    struct shared_event *event = calloc(1, sizeof(*event));
    struct handle found;
    char path[64];
    int file;

    if (!event)
        return NULL;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->process, handle->file);
    file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file >= 0 && pread(file, &found, sizeof(found), 0) == sizeof(found) && memcmp(&found, handle, sizeof(found)) == 0)
        event->content = map(file);
    if (file >= 0)
        close(file);
    event->file = -1;
    if (event->content)
        return event;
    free(event);
    return NULL;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle value)
{
    struct shared_event *shared;
    struct handle handle;
    CUcontext context;
    CUresult result = event ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    memcpy(&handle, &value, sizeof(handle));
    if (result != CUDA_SUCCESS)
        return result;
    if (memcmp(handle.mark, mark, sizeof(mark)) != 0)
        return CUDA_ERROR_MAP_FAILED;
    /* Only other processes open it. */
    if (handle.process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    shared = open_shared(&handle);
    if (!shared)
        return CUDA_ERROR_MAP_FAILED;
    *event = event_new(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, shared);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
