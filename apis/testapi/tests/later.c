/* Objects that end after the call that began them: streams, jobs, mapped, wrapped and shared memory. */
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static ta_device device;
static unsigned char data[300000];

static ta_buffer filled_buffer(void) {
    ta_buffer buffer = NULL;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 11 + i / 253);
    CHECK_EQ(ta_buffer_create(device, sizeof data, &buffer), TA_OK);
    CHECK_EQ(ta_buffer_write(buffer, 0, sizeof data, data), TA_OK);
    return buffer;
}

static void streams(void) {
    static unsigned char one[300000], two[100];
    ta_status error = TA_INVALID_VALUE;
    ta_buffer buffer = filled_buffer();
    CHECK(ta_stream_create(NULL, &error) == NULL);
    CHECK_EQ(error, TA_INVALID_DEVICE);
    ta_stream stream = ta_stream_create(device, &error), other = ta_stream_create(device, NULL);
    CHECK(stream != NULL && other != NULL);
    CHECK_EQ(error, TA_OK);
    CHECK(*(void **)stream != NULL); /* dispatchable: the first word is a table's address */
    CHECK_EQ(ta_read_async(buffer, 0, sizeof one, one, stream), TA_OK);
    CHECK_EQ(ta_read_async(buffer, 7, sizeof two, two, stream), TA_OK);
    CHECK_EQ(ta_buffer_fill(buffer, 0), TA_OK);
    CHECK_EQ(ta_stream_synchronize(stream), TA_OK);
    CHECK(memcmp(one, data, sizeof one) == 0);
    CHECK(memcmp(two, data + 7, sizeof two) == 0);
    for (int i = 0; i < 20; i++) {
        unsigned char byte = 9;
        ta_buffer_fill(buffer, (uint8_t)(100 + i));
        ta_read_async(buffer, (size_t)i, 1, &byte, i % 2 ? stream : other);
        if (ta_stream_synchronize(i % 2 ? stream : other) != TA_OK || byte != 100 + i)
            CHECK(!"a byte read through a stream");
    }
    CHECK_EQ(ta_stream_synchronize(stream), TA_OK);
    CHECK_EQ(ta_stream_destroy(stream), TA_OK);
    CHECK_EQ(ta_stream_destroy(other), TA_OK);
    CHECK_EQ(ta_stream_synchronize(stream), TA_INVALID_STREAM);
    CHECK_EQ(ta_flush(), TA_OK);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
}

static int notices;

static void count_notice(ta_event event, ta_status status, void *context) {
    (void)event, (void)status;
    __atomic_fetch_add((int *)context, 1, __ATOMIC_RELEASE);
}

static void jobs(void) {
    static unsigned char result[10000];
    ta_job job = NULL, second = NULL;
    CHECK_EQ(ta_job_start(300, 0x21, result, sizeof result, &job), TA_OK);
    CHECK_EQ(ta_job_query(job), TA_NOT_READY);
    CHECK_EQ(ta_job_wait(job), TA_OK);
    CHECK(result[0] == 0x21 && result[sizeof result - 1] == 0x21);
    CHECK_EQ(ta_job_query(job), TA_OK);
    CHECK_EQ(ta_job_destroy(job), TA_OK);
    CHECK_EQ(ta_job_destroy(job), TA_INVALID_JOB);

    /* Seen done by polling, without waiting on the job itself. */
    unsigned char small[5] = {1, 2, 3, 4, 5};
    CHECK_EQ(ta_job_double(20, small, 4, &job), TA_OK);
    while (ta_job_query(job) == TA_NOT_READY)
        usleep(1000);
    CHECK(small[0] == 2 && small[3] == 8 && small[4] == 5);
    CHECK_EQ(ta_job_destroy(job), TA_OK);

    /* Two at once, ending in the other order; destroying waits. */
    static unsigned char a[300000], b[16];
    CHECK_EQ(ta_job_start(60, 1, a, sizeof a, &job), TA_OK);
    CHECK_EQ(ta_job_start(10, 2, b, sizeof b, &second), TA_OK);
    CHECK_EQ(ta_job_destroy(second), TA_OK);
    CHECK(b[0] == 2 && b[15] == 2);
    CHECK_EQ(ta_job_destroy(job), TA_OK);
    CHECK(a[0] == 1 && a[sizeof a - 1] == 1);
    /* A callback comes from another thread while the job is being destroyed: what it carries along is not the
       unfinished output. */
    ta_event event = NULL;
    memset(b, 0, sizeof b);
    CHECK_EQ(ta_event_create(&event), TA_OK);
    CHECK_EQ(ta_job_start(60, 3, b, sizeof b, &job), TA_OK);
    CHECK_EQ(ta_event_notify(event, 20, count_notice, &notices), TA_OK);
    CHECK_EQ(ta_job_destroy(job), TA_OK);
    CHECK(b[0] == 3 && b[sizeof b - 1] == 3);
    while (__atomic_load_n(&notices, __ATOMIC_ACQUIRE) == 0)
        ;
    CHECK_EQ(ta_event_release(event), TA_OK);

    CHECK_EQ(ta_job_start(1, 1, NULL, 10, &job), TA_INVALID_VALUE);
}

static void mapped(void) {
    unsigned char back[16];
    ta_status error = TA_INVALID_VALUE;
    ta_buffer buffer = filled_buffer();
    unsigned char *p = ta_buffer_map(buffer, TA_MAP_READ | TA_MAP_WRITE, 100, 200000, &error);
    CHECK(p != NULL);
    CHECK_EQ(error, TA_OK);
    CHECK(p && memcmp(p, data + 100, 200000) == 0);
    if (p)
        memset(p, 0x77, 8);
    CHECK_EQ(ta_buffer_unmap(buffer, p), TA_OK);
    CHECK_EQ(ta_buffer_read(buffer, 100, 16, back), TA_OK);
    CHECK(back[0] == 0x77 && back[7] == 0x77 && back[8] == data[108]);
    CHECK_EQ(ta_buffer_unmap(buffer, p), TA_INVALID_VALUE);
    CHECK_EQ(ta_buffer_unmap(buffer, NULL), TA_INVALID_VALUE);
    p = ta_buffer_map(buffer, TA_MAP_READ, 0, 10, NULL);
    CHECK(p && p[9] == data[9]);
    CHECK_EQ(ta_buffer_unmap(buffer, p), TA_OK);
    CHECK(ta_buffer_map(buffer, TA_MAP_READ, 0, sizeof data + 1, &error) == NULL);
    CHECK_EQ(error, TA_INVALID_VALUE);
    CHECK(ta_buffer_map(NULL, TA_MAP_READ, 0, 1, &error) == NULL);
    CHECK_EQ(error, TA_INVALID_BUFFER);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
}

static void wrapped(void) {
    unsigned char back[64], own[64];
    ta_buffer buffer = NULL;
    for (int i = 0; i < 64; i++)
        own[i] = (unsigned char)(200 - i);
    CHECK_EQ(ta_buffer_wrap(device, own, sizeof own, &buffer), TA_OK);
    CHECK_EQ(ta_add(1, 1), 2);
    CHECK_EQ(ta_buffer_read(buffer, 0, 64, back), TA_OK);
    CHECK(memcmp(back, own, 64) == 0);
    CHECK_EQ(ta_buffer_fill(buffer, 3), TA_OK);
    CHECK_EQ(ta_buffer_read(buffer, 0, 64, back), TA_OK);
    CHECK(back[0] == 3 && back[63] == 3);
    unsigned char *p = ta_buffer_map(buffer, TA_MAP_READ | TA_MAP_WRITE, 16, 32, NULL);
    CHECK(p == own + 16);
    CHECK(own[16] == 3 && own[47] == 3);
    own[20] = 99;
    CHECK_EQ(ta_buffer_unmap(buffer, p), TA_OK);
    CHECK_EQ(ta_buffer_read(buffer, 0, 64, back), TA_OK);
    CHECK(back[19] == 3 && back[20] == 99 && back[21] == 3);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_buffer_wrap(device, NULL, 10, &buffer), TA_INVALID_VALUE);
}

static void shared(void) {
    uint8_t *p = ta_shared_alloc(1 << 20);
    CHECK(p != NULL);
    CHECK(ta_shared_alloc(0) == NULL);
    if (!p)
        return;
    memset(p, 1, 1000);
    CHECK_EQ(ta_shared_sum(p, 1000), 1000);
    CHECK_EQ(ta_shared_fill(p + 500, 1000, 3), TA_OK);
    CHECK(p[499] == 1 && p[500] == 3 && p[1499] == 3 && p[1500] == 0);
    CHECK_EQ(ta_shared_sum(p, 1 << 20), 500 + 3000);
    CHECK_EQ(ta_shared_fill(NULL, 5, 1), TA_INVALID_VALUE);
    uint8_t *copy = ta_shared_copy(p, 2000);
    CHECK(copy && copy != p && ta_shared_copy(NULL, 5) == NULL);
    CHECK_EQ(ta_shared_sum(copy, 2000), 500 + 3000);
    ta_shared_free(copy);
    ta_shared_free(p);
}

int main(int argc, char **argv) {
    int no_sharing = argc > 1 && strcmp(argv[1], "no-sharing") == 0;
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    streams();
    jobs();
    mapped();
    wrapped();
    if (!no_sharing)
        shared();
    CHECK_EQ(ta_device_close(device), TA_OK);
    return check_done();
}
