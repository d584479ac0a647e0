/* A program under load while its node is upgraded. It makes two calls every PAUSE ms until its input ends, and prints how many
 * it made and how long the longest took. Every answer is checked.
 *   upgrade PAUSE */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "testapi.h"
#include "timing.h"

int main(int argc, char **argv) {
    int pause = argc > 1 ? atoi(argv[1]) : 5;
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    unsigned char written[4096], read[4096];
    if (ta_device_open("loaded", &device) != TA_OK || ta_buffer_create(device, sizeof written, &buffer) != TA_OK) {
        fprintf(stderr, "upgrade: no buffer\n");
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    unsigned long calls = 0;
    uint64_t longest = 0;
    while (poll(&input, 1, pause) == 0) {
        for (size_t i = 0; i < sizeof written; i++)
            written[i] = (unsigned char)(calls + i);
        uint64_t begun = now();
        ta_status wrote = ta_buffer_write(buffer, 0, sizeof written, written);
        uint64_t between = now();
        ta_status got = ta_buffer_read(buffer, 0, sizeof read, read);
        uint64_t ended = now();
        if (wrote != TA_OK || got != TA_OK) {
            printf("lost %d %d\n", wrote, got);
            return 3;
        }
        for (size_t i = 0; i < sizeof read; i++)
            if (read[i] != written[i]) {
                printf("wrong\n");
                return 4;
            }
        if (between - begun > longest)
            longest = between - begun;
        if (ended - between > longest)
            longest = ended - between;
        calls += 2;
    }
    printf("calls %lu longest_ms %.3f\n", calls, (double)longest / 1e6);
    return 0;
}
