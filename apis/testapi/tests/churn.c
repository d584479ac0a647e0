/* Uses everything again and again: memory of guest and library process must stay level. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "resident.h"
#include "testapi.h"

static int32_t visit(uint32_t index, void *context) {
    *(int *)context += 1;
    return (int32_t)index;
}

static void ignore(const char *message, void *context) {
    (void)message, (void)context;
}

static void ignore_event(ta_event event, ta_status status, void *context) {
    (void)event, (void)status;
    __atomic_fetch_add((int *)context, 1, __ATOMIC_RELAXED);
}

static unsigned char data[70000];
static int notified;

/* Counts a step that went wrong in `wrong`, and says which one and when. */
#define STEP(holds)                                                                                \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            printf("round %d, line %d: not so: %s\n", round, __LINE__, #holds);                     \
            wrong++;                                                                               \
        }                                                                                          \
    } while (0)

static int once(int round) {
    ta_device device = NULL;
    ta_buffer buffer = NULL, wrapped = NULL;
    ta_event events[4];
    ta_kernel kernel = NULL;
    ta_job job = NULL;
    uint8_t value = 1;
    int calls = 0, wrong = 0;
    STEP(ta_device_open("churn", &device) == TA_OK);
    STEP(ta_device_log(device, ignore, NULL) == TA_OK);
    STEP(ta_device_say(device, "a message") == TA_OK);
    STEP(ta_buffer_create(device, sizeof data, &buffer) == TA_OK);
    STEP(ta_buffer_wrap(device, data, 5000, &wrapped) == TA_OK);
    STEP(ta_buffer_write(buffer, 0, sizeof data, data) == TA_OK);
    ta_stream stream = ta_stream_create(device, NULL);
    STEP(ta_read_async(buffer, 0, sizeof data, data, stream) == TA_OK);
    STEP(ta_stream_synchronize(stream) == TA_OK);
    STEP(ta_stream_destroy(stream) == TA_OK);
    STEP(ta_events_create(4, events) == TA_OK);
    STEP(ta_event_notify(events[0], 0, ignore_event, &notified) == TA_OK);
    STEP(ta_each(3, visit, &calls) == 3 && calls == 3);
    STEP(ta_kernel_create(device, "fill", &kernel) == TA_OK);
    void *arguments[] = {&buffer, &value};
    STEP(ta_kernel_launch(kernel, arguments) == TA_OK);
    STEP(ta_kernel_destroy(kernel) == TA_OK);
    STEP(ta_job_start(0, 7, data, 9000, &job) == TA_OK);
    STEP(ta_job_destroy(job) == TA_OK);
    STEP(data[8999] == 7);
    void *mapped = ta_buffer_map(buffer, TA_MAP_READ | TA_MAP_WRITE, 0, 20000, NULL);
    STEP(ta_buffer_unmap(buffer, mapped) == TA_OK);
    void *shared = ta_shared_alloc(100000);
    STEP(!shared || ta_shared_fill(shared, 100000, (uint8_t)round) == TA_OK); // NULL where memory is mirrored
    if (shared)
        ta_shared_free(shared);
    STEP(ta_buffer_destroy(wrapped) == TA_OK);
    STEP(ta_buffer_destroy(buffer) == TA_OK);
    while (__atomic_load_n(&notified, __ATOMIC_RELAXED) <= round)
        usleep(100);
    for (int i = 0; i < 4; i++)
        STEP(ta_event_release(events[i]) == TA_OK);
    STEP(ta_device_close(device) == TA_OK);
    return wrong;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 500, wrong = 0, server = ta_process();
    for (int i = 0; i < rounds / 2; i++)
        wrong += once(i);
    long guest_before = resident(getpid()), server_before = resident(server);
    for (int i = rounds / 2; i < rounds; i++)
        wrong += once(i);
    long guest_grown = resident(getpid()) - guest_before, server_grown = resident(server) - server_before;
    /* Where the session has moved, the library is in another process, whose memory is not compared with that of the first. */
    int moved = ta_process() != server;
    CHECK_EQ(wrong, 0);
    fprintf(stderr, "grown: %ld KiB here, %ld KiB in the library's process\n", guest_grown, server_grown);
    CHECK(guest_grown < 3000);
    CHECK(moved || server_grown < 3000);
    return check_done();
}
