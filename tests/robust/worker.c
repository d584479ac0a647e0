/* A guest under test: uses most kinds of calls at random and knows every result.
 *   worker SEED MILLISECONDS
 * Prints "ready SERVER" once it is attached (SERVER: the process that runs the library). Ends with
 *   0  the time is over and every result was right
 *   1  a result was wrong (it says which)
 *   2  it could not attach
 *   3  the session was lost: every later call said so at once
 *   4  the session was lost, but a later call worked or took long */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "testapi.h"

#define LARGEST ((size_t)1 << 20)
/* Longest time that calls of a lost session may take altogether. */
#define LOST_SECONDS 30.0

static ta_device device;
static unsigned char *data, *back;
static uint64_t state;

static uint32_t random_number(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The session is lost: is it lost for good, and without waiting? */
static void lost(void) {
    double start = now();
    int bad = 0;
    for (int i = 0; i < 50; i++) {
        ta_device other = NULL;
        bad += ta_device_open("again", &other) != TA_DEVICE_LOST;
        bad += ta_noop_async() != TA_DEVICE_LOST;
    }
    double took = now() - start;
    if (bad || took > LOST_SECONDS) {
        printf("lost, but %d calls worked in %.3f s\n", bad, took);
        fflush(stdout);
        exit(4);
    }
    exit(3);
}

static void expect(int right, const char *what) {
    if (right)
        return;
    for (int i = 0; i < 3; i++)
        if (ta_noop() == TA_DEVICE_LOST)
            lost();
    printf("wrong: %s\n", what);
    fflush(stdout);
    exit(1);
}
#define EXPECT(condition) expect((condition) != 0, #condition)

static void small_calls(void) {
    int count = (int)random_number(200);
    for (int i = 0; i < count; i++)
        EXPECT(ta_add(i, 7) == i + 7);
}

/* More than a ring holds: the guest is faster than its server. */
static void asynchronous(void) {
    uint64_t before = ta_noop_count();
    int count = (int)random_number(5000);
    for (int i = 0; i < count; i++)
        ta_noop_async();
    uint64_t after = ta_noop_count();
    EXPECT(ta_noop() == TA_OK);
    EXPECT(after == before + (uint64_t)count);
}

static void fill_data(size_t bytes) {
    uint32_t word = random_number(1u << 30);
    for (size_t i = 0; i + 4 <= bytes; i += 4, word += 0x9e3779b9u)
        memcpy(data + i, &word, 4);
}

static void transfers(void) {
    size_t bytes = (1 + random_number(1u << random_number(19))) * 4;
    bytes = bytes > LARGEST ? LARGEST : bytes;
    ta_buffer buffer = NULL;
    fill_data(bytes);
    EXPECT(ta_buffer_create(device, bytes, &buffer) == TA_OK);
    EXPECT(ta_buffer_write(buffer, 0, bytes, data) == TA_OK);
    memset(back, 0, bytes);
    EXPECT(ta_buffer_read(buffer, 0, bytes, back) == TA_OK);
    EXPECT(memcmp(data, back, bytes) == 0);
    ta_status error = TA_OK;
    unsigned char *mapped = ta_buffer_map(buffer, TA_MAP_READ | TA_MAP_WRITE, 0, bytes, &error);
    EXPECT(mapped && memcmp(mapped, data, bytes) == 0);
    mapped[bytes - 1] ^= 0xff;
    EXPECT(ta_buffer_unmap(buffer, mapped) == TA_OK);
    EXPECT(ta_buffer_read(buffer, bytes - 1, 1, back) == TA_OK);
    EXPECT(back[0] == (data[bytes - 1] ^ 0xff));
    EXPECT(ta_buffer_destroy(buffer) == TA_OK);
}

static int32_t visit(uint32_t index, void *context) {
    *(int *)context += ta_add(1, 0);
    return (int32_t)index;
}

static void callbacks(void) {
    int seen = 0;
    int64_t sum = ta_each(20, visit, &seen);
    EXPECT(sum == 190 && seen == 20);
}

static _Atomic int notified;

static void notify(ta_event event, ta_status status, void *context) {
    (void)event, (void)status, (void)context;
    atomic_fetch_add(&notified, 1);
}

static void notifications(void) {
    ta_event event = NULL;
    int before = atomic_load(&notified);
    EXPECT(ta_event_create(&event) == TA_OK);
    EXPECT(ta_event_notify(event, 1, notify, NULL) == TA_OK);
    double start = now();
    while (atomic_load(&notified) == before && now() - start < 30) {
        EXPECT(ta_noop() == TA_OK);
        usleep(200);
    }
    EXPECT(atomic_load(&notified) == before + 1);
    EXPECT(ta_event_release(event) == TA_OK);
}

static void later(void) {
    static unsigned char to[20000];
    ta_status error = TA_OK;
    ta_buffer buffer = NULL;
    ta_job job = NULL;
    ta_stream stream = ta_stream_create(device, &error);
    EXPECT(stream && error == TA_OK);
    EXPECT(ta_buffer_create(device, sizeof to, &buffer) == TA_OK);
    EXPECT(ta_buffer_fill(buffer, 0x6b) == TA_OK);
    memset(to, 0, sizeof to);
    EXPECT(ta_read_async(buffer, 0, sizeof to, to, stream) == TA_OK);
    EXPECT(ta_stream_synchronize(stream) == TA_OK);
    EXPECT(to[0] == 0x6b && to[sizeof to - 1] == 0x6b);
    EXPECT(ta_stream_destroy(stream) == TA_OK);
    EXPECT(ta_buffer_destroy(buffer) == TA_OK);
    EXPECT(ta_job_start(1, 0x2d, to, sizeof to, &job) == TA_OK);
    EXPECT(ta_job_wait(job) == TA_OK);
    EXPECT(to[0] == 0x2d && to[sizeof to - 1] == 0x2d);
    EXPECT(ta_job_destroy(job) == TA_OK);
}

static void shared(void) {
    unsigned char *p = ta_shared_alloc(50000);
    if (!p && getenv("AVIARY_TRANSPORT"))
        return; /* there is no shared memory over a socket */
    EXPECT(p != NULL);
    EXPECT(ta_shared_fill(p, 50000, 3) == TA_OK);
    EXPECT(ta_shared_sum(p, 50000) == 150000);
    ta_shared_free(p);
    EXPECT(ta_noop() == TA_OK);
}

static void *thread(void *unused) {
    uintptr_t wrong = 0;
    (void)unused;
    for (int i = 0; i < 50; i++) {
        ta_noop_async();
        wrong += ta_add(i, i) != 2 * i;
    }
    return (void *)wrong;
}

static void threads(void) {
    pthread_t all[4];
    void *wrong[4];
    for (int i = 0; i < 4; i++)
        EXPECT(pthread_create(&all[i], NULL, thread, NULL) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], &wrong[i]);
    for (int i = 0; i < 4; i++)
        EXPECT(wrong[i] == NULL);
}

/* A session of its own. It may be lost while this one is not. */
static void child(void) {
    if (random_number(20))
        return;
    pid_t pid = fork();
    if (pid == 0) {
        int sum = ta_add(20, 22);
        _exit(sum == 42 || ta_noop() == TA_DEVICE_LOST ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void pause_a_little(void) {
    usleep(random_number(5000));
}

int main(int argc, char **argv) {
    static void (*const all[])(void) = {small_calls, asynchronous, transfers,       callbacks, notifications,
                                        later,       shared,       pause_a_little,  threads,   child,
                                        transfers,   small_calls,  pause_a_little};
    if (argc < 3)
        return 64;
    state = strtoull(argv[1], NULL, 10) * 2654435761u + 1;
    double end = now() + atof(argv[2]) / 1e3;
    data = malloc(LARGEST);
    back = malloc(LARGEST);
    if (!data || !back || ta_device_open("worker", &device) != TA_OK)
        return 2;
    printf("ready %d\n", (int)ta_process());
    fflush(stdout);
    do
        all[random_number(sizeof all / sizeof *all)]();
    while (now() < end);
    EXPECT(ta_device_close(device) == TA_OK);
    return 0;
}
