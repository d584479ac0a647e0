/* In a VM: processes that open the device, work, and are killed or crash.
 *   cycles COUNT [SEED]     says how many there were, and how many of them had attached */
#include <signal.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testapi.h"

#define BYTES ((size_t)4 << 20)

static void work(int said) {
    ta_device device;
    ta_buffer buffer;
    char *bytes = calloc(1, BYTES);
    if (!bytes || ta_device_open("cycle", &device) != TA_OK || ta_buffer_create(device, BYTES, &buffer) != TA_OK)
        _exit(2);
    for (int first = 1;; first = 0) {
        if (ta_buffer_write(buffer, 0, BYTES, bytes) != TA_OK || ta_buffer_fill(buffer, 7) != TA_OK ||
            ta_buffer_read(buffer, 0, BYTES, bytes) != TA_OK)
            _exit(3);
        if (first && write(said, "x", 1) != 1)
            _exit(4);
    }
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 100, attached = 0;
    static const int ends[] = {SIGKILL, SIGSEGV, SIGKILL, SIGTERM, SIGKILL, SIGABRT};
    srandom(argc > 2 ? (unsigned)atol(argv[2]) : 1);
    for (long i = 0; i < count; i++) {
        int said[2];
        if (pipe(said))
            return 1;
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            close(said[0]);
            work(said[1]);
        }
        close(said[1]);
        struct pollfd pipe_end = {.fd = said[0], .events = POLLIN};
        char byte;
        /* Every fifth dies at any time of its start. */
        int patience = i % 5 ? 20000 : (int)(random() % 60);
        if (poll(&pipe_end, 1, patience) == 1 && read(said[0], &byte, 1) == 1) {
            attached++;
            usleep((useconds_t)(random() % 3000));
        }
        close(said[0]);
        kill(child, ends[i % 6]);
        int status;
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) {
            fprintf(stderr, "cycle %ld: ended by itself with status %d\n", i, WEXITSTATUS(status));
            return 1;
        }
    }
    printf("%ld cycles, %ld attached\n", count, attached);
    return 0;
}
