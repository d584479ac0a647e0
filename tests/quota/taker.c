/* A guest that takes as much of device_memory as it gets.
 *   taker PIECE [fork | DEVICE]
 * fork: as a child of a process that took a piece itself and stays. DEVICE: on a device of that name. Then, for each line of its standard input,
 *   t take until refused   1 take one piece, if there is one   r return everything   m be refused a thousand times
 *   u return what was never taken, and ask for impossible sizes   d call ta_reserve, which is denied
 *   p call from a second thread   l find the device lost
 * it prints how many pieces it holds, or that something was wrong. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testapi.h"

#define MOST 100000

static ta_device device;
static ta_buffer buffers[MOST];
static int count;

static ta_status take(size_t piece) {
    ta_status status = count < MOST ? ta_buffer_create(device, piece, &buffers[count]) : TA_INVALID_VALUE;
    count += status == TA_OK;
    return status;
}

static void *call(void *unused) {
    (void)unused;
    return (void *)(intptr_t)ta_noop();
}

static int command(char letter, size_t piece) {
    ta_status status = TA_OK;
    ta_buffer none = NULL;
    switch (letter) {
    case 't':
        while ((status = take(piece)) == TA_OK)
            ;
        return status == TA_OUT_OF_MEMORY;
    case '1':
        return (status = take(piece)) == TA_OK || status == TA_OUT_OF_MEMORY;
    case 'r':
        while (count && (status = ta_buffer_destroy(buffers[--count])) == TA_OK)
            ;
        return status == TA_OK;
    case 'u':
        return ta_unreserve(piece) != TA_OK && ta_unreserve(UINT64_MAX) != TA_OK &&
               ta_buffer_create(device, SIZE_MAX, &none) == TA_OUT_OF_MEMORY && ta_reserve(UINT64_MAX) == TA_OUT_OF_MEMORY;
    case 'm':
        for (int i = 0; i < 1000; i++)
            if (ta_reserve(UINT64_MAX) != TA_OUT_OF_MEMORY)
                return 0;
        return 1;
    case 'd':
        return ta_reserve(1) == TA_OUT_OF_MEMORY && ta_noop() == TA_OK;
    case 'l':
        return ta_noop() == TA_DEVICE_LOST && ta_buffer_create(device, piece, &none) == TA_DEVICE_LOST;
    case 'p': {
        /* One more thread than there is now, while this one goes on. */
        pthread_t thread;
        void *answer = NULL;
        pthread_create(&thread, NULL, call, NULL);
        pthread_join(thread, &answer);
        return (intptr_t)answer == TA_OK;
    }
    default:
        return 0;
    }
}

int main(int argc, char **argv) {
    size_t piece = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    char line[16];
    setvbuf(stdout, NULL, _IOLBF, 0);
    int forks = argc > 2 && !strcmp(argv[2], "fork");
    if (!piece || ta_device_open(argc > 2 && !forks ? argv[2] : "taker", &device) != TA_OK)
        return 2;
    if (forks) {
        if (take(piece) != TA_OK)
            return 2;
        pid_t child = fork();
        if (child) {
            waitpid(child, NULL, 0);
            return 0;
        }
        /* Another process: another session, and its parent's objects are not its own. */
        count = 0;
        if (ta_device_open("child", &device) != TA_OK)
            return 2;
    }
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        int right = command(line[0], piece);
        printf(right ? "%d\n" : "wrong, with %d\n", count);
    }
    return 0;
}
