/* One copy in each direction that stops half way until its standard input says so. Lines of its output:
 *   stopped    the copy to the device has come to memory that cannot be read yet; a line of input makes it readable
 *   reads      the copy to the program begins after a line of input
 *   early      a part of it is in the program's memory, and the call has not returned
 *   equal      the bytes that were written came back */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <pthread.h>
#include <unistd.h>

#include "testapi.h"

#define BYTES ((size_t)8 << 20)
/* What can be read at first. */
#define BEFORE ((size_t)6 << 20)
#define STRIDE ((size_t)16 << 10)
#define UNTOUCHED 0xee

static uint8_t *from, *to;
static atomic_int returned;

static void say(const char *line) {
    if (write(1, line, strlen(line)) < 0)
        _exit(9);
}

static void await_line(void) {
    char c;
    while (read(0, &c, 1) == 1 && c != '\n') {
    }
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    uint8_t *at = info->si_addr;
    if (at < from + BEFORE || at >= from + BYTES)
        _exit(8);
    say("stopped\n");
    await_line();
    mprotect(from + BEFORE, BYTES - BEFORE, PROT_READ);
}

static void *watch(void *unused) {
    (void)unused;
    while (!returned) {
        for (size_t at = 0; at < BYTES; at += STRIDE) {
            if (((volatile uint8_t *)to)[at] != UNTOUCHED) {
                say(returned ? "late\n" : "early\n");
                return NULL;
            }
        }
        usleep(1000);
    }
    return NULL;
}

int main(void) {
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    pthread_t watcher;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    from = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    to = malloc(BYTES);
    if (from == MAP_FAILED || to == NULL)
        return 1;
    for (size_t at = 0; at < BYTES; at++)
        from[at] = (uint8_t)((at * 2654435761u) >> 13) & 0x7f;
    memset(to, UNTOUCHED, BYTES);
    if (ta_device_open("overlap", &device) != TA_OK || ta_buffer_create(device, BYTES, &buffer) != TA_OK)
        return 2;
    /* What makes strands, where there are any to be made. */
    if (ta_buffer_write(buffer, 0, BYTES, from) != TA_OK)
        return 3;
    say("ready\n");
    await_line();
    sigaction(SIGSEGV, &action, NULL);
    mprotect(from + BEFORE, BYTES - BEFORE, PROT_NONE);
    if (ta_buffer_fill(buffer, 0) != TA_OK || ta_buffer_write(buffer, 0, BYTES, from) != TA_OK)
        return 4;
    say("reads\n");
    await_line();
    if (pthread_create(&watcher, NULL, watch, NULL) != 0)
        return 5;
    if (ta_buffer_read(buffer, 0, BYTES, to) != TA_OK)
        return 6;
    returned = 1;
    pthread_join(watcher, NULL);
    if (memcmp(from, to, BYTES) != 0)
        return 7;
    say("equal\n");
    return ta_device_close(device) == TA_OK ? 0 : 8;
}
