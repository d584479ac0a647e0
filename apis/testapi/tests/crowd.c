/* A program that has more memory than it uses at a time, beside others like it.
 * crowd BUFFERS BYTES ROUNDS PAUSE_US WORK_NS   each round writes to one of the buffers, has the accelerator work, reads
 *                                               another buffer, and pauses; at the end all of them must be right */
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

#define MOST 64

static unsigned char value_at(unsigned buffer, unsigned round, size_t at) {
    return (unsigned char)(buffer * 31 + round * 7 + at * 13 + (at >> 8));
}

static int is_right(ta_buffer buffer, unsigned number, unsigned round, unsigned char *bytes, size_t count) {
    if (ta_buffer_read(buffer, 0, count, bytes) != TA_OK)
        return 0;
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != value_at(number, round, at))
            return 0;
    return 1;
}

int main(int argc, char **argv) {
    unsigned buffers = argc > 1 ? (unsigned)atoi(argv[1]) : 4, rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 20;
    size_t count = argc > 2 ? (size_t)atol(argv[2]) : 100000;
    useconds_t pause = argc > 4 ? (useconds_t)atoi(argv[4]) : 0;
    uint64_t work = argc > 5 ? (uint64_t)atoll(argv[5]) : 0;
    ta_device device = NULL;
    ta_buffer buffer[MOST];
    unsigned written[MOST] = {0};
    unsigned char *bytes = malloc(count);
    CHECK(bytes && buffers <= MOST);
    CHECK_EQ(ta_device_open("crowded", &device), TA_OK);
    unsigned made = 0;
    for (; made < buffers; made++) {
        ta_status status = ta_buffer_create(device, count, &buffer[made]);
        if (status != TA_OK) {
            printf("refused %u of %u: %d\n", made + 1, buffers, status);
            return 4;
        }
        for (size_t at = 0; at < count; at++)
            bytes[at] = value_at(made, 0, at);
        CHECK_EQ(ta_buffer_write(buffer[made], 0, count, bytes), TA_OK);
    }
    void *address = ta_buffer_address(buffer[0]);
    unsigned right = 0;
    for (unsigned round = 1; round <= rounds; round++) {
        unsigned to = round % buffers, from = (round * 5 + 1) % buffers;
        for (size_t at = 0; at < count; at++)
            bytes[at] = value_at(to, round, at);
        CHECK_EQ(ta_buffer_write(buffer[to], 0, count, bytes), TA_OK);
        written[to] = round;
        if (work) {
            CHECK_EQ(ta_accelerator_submit(1, work), TA_OK);
            CHECK_EQ(ta_accelerator_finish(), TA_OK);
        }
        right += is_right(buffer[from], from, written[from], bytes, count);
        if (pause)
            usleep(pause);
    }
    CHECK_EQ(right, rounds);
    CHECK(ta_buffer_address(buffer[0]) == address);
    for (unsigned number = 0; number < buffers; number++) {
        CHECK(is_right(buffer[number], number, written[number], bytes, count));
        CHECK_EQ(ta_buffer_destroy(buffer[number]), TA_OK);
    }
    CHECK_EQ(ta_device_close(device), TA_OK);
    free(bytes);
    return 0;
}
