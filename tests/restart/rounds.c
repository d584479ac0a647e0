/* Computes one round for each line of its standard input, and prints a sum of everything that its device holds: what a round
 * prints depends on all rounds before it. Two threads call at a time. Without input it ends. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "testapi.h"

#define BYTES ((size_t)1 << 20)
#define PIECE ((size_t)48 << 10)

static ta_buffer buffers[2];

struct task {
    unsigned thread, round;
    uint64_t sum;
    ta_status status;
};

/* One thread's part: calls that nobody waits for, a piece that is written, all that is read. */
static void *work(void *argument) {
    static uint8_t pieces[2][PIECE], contents[2][BYTES];
    struct task *task = argument;
    unsigned at = task->thread, round = task->round;
    ta_buffer buffer = buffers[at];
    size_t offset = (round * 7919u + at * 104729u) * 64u % (BYTES - PIECE);
    for (size_t byte = 0; byte < PIECE; byte++)
        pieces[at][byte] = (uint8_t)(byte * 31 + round + at);
    for (unsigned i = 0; i < 50 && task->status == TA_OK; i++)
        task->status = ta_buffer_set(buffer, (offset + i * 977u) % BYTES, (uint8_t)(round + i), i % 10 == 9);
    if (task->status == TA_OK)
        task->status = ta_buffer_write(buffer, offset, PIECE, pieces[at]);
    if (task->status == TA_OK)
        task->status = ta_buffer_read(buffer, 0, BYTES, contents[at]);
    for (size_t byte = 0; byte < BYTES; byte++)
        task->sum = task->sum * 31 + contents[at][byte];
    return NULL;
}

int main(void) {
    ta_device device = NULL;
    char line[16];
    if (ta_device_open("restarted", &device) != TA_OK)
        return 2;
    for (unsigned at = 0; at < 2; at++) {
        if (ta_buffer_create(device, BYTES, &buffers[at]) != TA_OK || ta_buffer_fill(buffers[at], (uint8_t)at) != TA_OK)
            return 2;
    }
    for (unsigned round = 1; fgets(line, sizeof line, stdin) != NULL; round++) {
        struct task tasks[2] = {{0, round, 0, TA_OK}, {1, round, 0, TA_OK}};
        pthread_t other;
        /* A thread of its own each time: lanes open and close at any moment. */
        if (pthread_create(&other, NULL, work, &tasks[1]) != 0)
            return 3;
        work(&tasks[0]);
        pthread_join(other, NULL);
        if (tasks[0].status != TA_OK || tasks[1].status != TA_OK) {
            printf("round %u: status %d %d\n", round, (int)tasks[0].status, (int)tasks[1].status);
            return 4;
        }
        printf("round %u: %016llx %016llx\n", round, (unsigned long long)tasks[0].sum, (unsigned long long)tasks[1].sum);
        fflush(stdout);
    }
    return ta_device_close(device) == TA_OK ? 0 : 5;
}
