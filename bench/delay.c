// A link with a delay and a rate between two network namespaces, for kernels without netem:
//   delay NAMESPACE NAMESPACE DELAY_US MBIT     (MBIT 0: no limit)
// Makes a device `link0` in each, prints "ready", and passes packets on until it is killed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "timing.h"

#define LARGEST (65536 + 64)
// Packets under way in one direction; the memory of those that are not there is never touched.
#define SLOTS 4096
// Data that waits for the line beyond this is dropped, as a switch does.
#define QUEUE_NS 20000000

struct packet {
    uint64_t due;
    size_t bytes;
    char data[LARGEST];
};

struct direction {
    int from, to;
    uint64_t line_free;
    size_t first, count;
    struct packet *packets;
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int device(const char *namespace) {
    char path[200];
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) fail(path);
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    strcpy(request.ifr_name, "link0");
    if (ioctl(fd, TUNSETIFF, &request)) fail("TUNSETIFF");
    // Large packets pass in one piece, as through a real card's queue.
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) fail("TUNSETOFFLOAD");
    return fd;
}

static void take(struct direction *d, uint64_t delay, uint64_t mbit) {
    while (d->count < SLOTS) {
        struct packet *p = &d->packets[(d->first + d->count) % SLOTS];
        ssize_t n = read(d->from, p->data, sizeof p->data);
        if (n <= 0) return;
        uint64_t time = now();
        if (d->line_free < time) d->line_free = time;
        if (mbit && d->line_free - time > QUEUE_NS) continue;
        if (mbit) d->line_free += (uint64_t)n * 8000 / mbit;
        p->due = d->line_free + delay;
        p->bytes = (size_t)n;
        d->count++;
    }
}

// When the next packet is due, or 0.
static uint64_t pass(struct direction *d) {
    while (d->count) {
        struct packet *p = &d->packets[d->first];
        if (p->due > now()) return p->due;
        // A full device drops it, as a line does.
        if (write(d->to, p->data, p->bytes) < 0 && errno != EAGAIN && errno != EIO) fail("write");
        d->first = (d->first + 1) % SLOTS;
        d->count--;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    uint64_t delay = strtoull(argv[3], NULL, 10) * 1000, mbit = strtoull(argv[4], NULL, 10);
    int a = device(argv[1]), b = device(argv[2]);
    struct direction d[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    for (int i = 0; i < 2; i++)
        if (!(d[i].packets = calloc(SLOTS, sizeof(struct packet)))) fail("memory");
    prctl(PR_SET_TIMERSLACK, 1);
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint64_t due = 0;
        for (int i = 0; i < 2; i++) {
            take(&d[i], delay, mbit);
            uint64_t next = pass(&d[i]);
            if (next && (!due || next < due)) due = next;
        }
        struct pollfd fds[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
        uint64_t time = now(), wait = due > time ? due - time : 0;
        struct timespec timeout = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        ppoll(fds, 2, due ? &timeout : NULL, NULL);
    }
}
