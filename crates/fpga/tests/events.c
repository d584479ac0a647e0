/* Walks a list of one node again and again, and sleeps until the accelerator says that it has ended. */
#include <aviary-fpga.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define LL "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002"
#define HEAD 0x40
#define SUM 0x80

static void check(int right, const char *text)
{
    if (!right) {
        fprintf(stderr, "wrong: %s\n", text);
        exit(1);
    }
}

/* A job that never ends is waited for without a look at it every few milliseconds; one that ends is not missed. */
static void sleeps(void)
{
    aviary_fpga *walker;
    struct rusage before, after;
    uint64_t *node;

    check(aviary_fpga_connect(LL, &walker) == 0, "connect");
    node = aviary_fpga_malloc(walker, 1);
    node[0] = (uintptr_t)node;
    check(aviary_fpga_write(walker, HEAD, (uintptr_t)node) == 0 && aviary_fpga_start(walker) == 0, "start");
    getrusage(RUSAGE_SELF, &before);
    check(aviary_fpga_wait(walker, 2500) == -ETIMEDOUT, "it runs");
    getrusage(RUSAGE_SELF, &after);
    check(after.ru_nvcsw - before.ru_nvcsw < 25, "the thread sleeps");
    node[0] = 0;
    check(aviary_fpga_wait(walker, -1) == 0, "its end");
    for (int round = 0; round < 100; round++)
        check(aviary_fpga_start(walker) == 0 && aviary_fpga_wait(walker, -1) == 0, "further jobs");
    aviary_fpga_disconnect(walker);
}

int main(void)
{
    aviary_fpga *walker;
    struct aviary_fpga_status status;
    struct pollfd polled = {.events = POLLIN};
    uint64_t *node, sum, count;
    int other, again;

    sleeps();
    check(aviary_fpga_connect(LL, &walker) == 0, "connect");
    node = aviary_fpga_malloc(walker, 1);
    check(node != NULL, "memory");
    check(aviary_fpga_event(walker, 4, &other) == -EINVAL, "there is no vector 4");
    check(aviary_fpga_event(walker, 0, &polled.fd) == 0, "event");
    check(aviary_fpga_event(walker, 1, &other) == 0, "event of another vector");
    check(poll(&polled, 1, 0) == 0, "nothing yet");
    for (uint64_t round = 1; round <= 3; round++) {
        node[0] = 0;
        node[1] = round;
        check(aviary_fpga_write(walker, HEAD, (uintptr_t)node) == 0, "HEAD");
        check(aviary_fpga_start(walker) == 0, "start");
        check(poll(&polled, 1, -1) == 1 && polled.revents == POLLIN, "woken");
        check(read(polled.fd, &count, sizeof count) == sizeof count && count == 1, "count");
        check(aviary_fpga_status(walker, &status) == 0 && status.phase == AVIARY_FPGA_DONE, "done when woken");
        check(aviary_fpga_read(walker, SUM, &sum) == 0 && sum == round, "sum");
    }
    /* A new descriptor of a vector ends the earlier one. */
    check(aviary_fpga_event(walker, 0, &again) == 0, "again");
    check(read(polled.fd, &count, sizeof count) == 0, "the earlier one is at its end");
    aviary_fpga_disconnect(walker);
    check(read(again, &count, sizeof count) == 0, "disconnected");
    return 0;
}
